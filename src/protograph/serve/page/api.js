/** Requests to the server. What it refuses is an ApiError with its sentence; a server out of reach is an Unreachable. */

import { token } from "./session.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached. Nothing was lost: try again when it is back.");
  }
}

/** Tells of `reached`, `unreachable` and `refused` (the token is not, or no longer, the server's). */
export const line = new EventTarget();

const tell = (type) => line.dispatchEvent(new Event(type));

/** Return what a GET request answers. */
export const get = (path, query, options) => request("GET", path, { query, ...options });

/** Return what a POST request of JSON answers. */
export const post = (path, json) => request("POST", path, { json });

/** Return the bytes that a GET request answers. */
export const getBlob = (path, query, options) => request("GET", path, { query, ...options, blob: true });

async function request(method, path, { query = {}, json, signal, blob = false }) {
  const headers = authorization();
  if (json !== undefined) headers["Content-Type"] = "application/json";
  const body = json === undefined ? undefined : JSON.stringify(json);
  let response;
  try {
    response = await fetch(address(path, query), { method, headers, body, signal, cache: "no-store" });
  } catch (error) {
    throw failed(error);
  }
  tell("reached");
  if (!response.ok) throw refusal(response.status, await response.text().catch(() => ""));
  try {
    return await (blob ? response.blob() : response.json());
  } catch (error) {
    throw failed(error);
  }
}

/**
 * Send fields and files, and return the answer. `fetch` cannot say how much was sent, so this is an XMLHttpRequest.
 *
 * @param {string} path
 * @param {[string, string | File][]} fields
 * @param {{onProgress?: (share: number) => void, signal?: AbortSignal}} options
 */
export function upload(path, fields, { onProgress, signal } = {}) {
  const form = new FormData();
  for (const [name, value] of fields) form.append(name, value);
  return new Promise((resolve, reject) => {
    const sent = new XMLHttpRequest();
    sent.open("POST", path);
    for (const [name, value] of Object.entries(authorization())) sent.setRequestHeader(name, value);
    sent.upload.onprogress = (event) => event.lengthComputable && onProgress?.(event.loaded / event.total);
    sent.onload = () => {
      tell("reached");
      if (sent.status >= 400) return reject(refusal(sent.status, sent.responseText));
      try {
        resolve(JSON.parse(sent.responseText));
      } catch {
        reject(new ApiError("The server's answer cannot be read: reload the page.", sent.status));
      }
    };
    sent.onerror = () => reject(failed(null));
    sent.onabort = () => reject(new DOMException("stopped", "AbortError"));
    if (signal?.aborted) return sent.onabort();
    signal?.addEventListener("abort", () => sent.abort(), { once: true });
    sent.send(form);
  });
}

/** Yield the server's events, {type, data}, until the connection ends. */
export async function* events(path, signal) {
  const response = await fetch(path, { headers: authorization(), signal, cache: "no-store" }).catch((error) => {
    throw failed(error);
  });
  if (!response.ok) throw refusal(response.status, await response.text());
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw failed(error);
    });
    if (done) return;
    const messages = (rest + value).split(/\r?\n\r?\n/);
    rest = messages.pop();
    for (const message of messages) yield parsed(message);
  }
}

/** Return one server-sent event; a comment, which keeps the connection alive, has neither type nor data. */
function parsed(message) {
  const event = { type: null, data: null };
  for (const row of message.split(/\r?\n/)) {
    if (row.startsWith("event:")) event.type = row.slice(6).trim();
    if (row.startsWith("data:")) event.data = JSON.parse(row.slice(5));
  }
  return event;
}

const authorization = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

function address(path, query) {
  const values = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== null));
  return values.size ? `${path}?${values}` : path;
}

function failed(error) {
  if (error?.name === "AbortError") return error;
  tell("unreachable");
  return new Unreachable();
}

function refusal(status, text) {
  if (status === 401) tell("refused");
  let message;
  try {
    message = JSON.parse(text).error;
  } catch {
    message = null;
  }
  return new ApiError(message ?? `The server answered with the error ${status}.`, status);
}
