/** The changes of other pages and of the command, as the server tells them; and whether it can be reached at all. */

import { ApiError, events, line } from "./api.js";
import { noticeVersion, refreshModel, store } from "./store.js";

const SILENCE = 45_000; // milliseconds without a sign of life, after which the connection counts as lost
const LONGEST_WAIT = 10_000;

let wait = 0;
let wake = () => {};

/** Follow the server's events for as long as the page is open. */
export async function follow() {
  addEventListener("offline", () => line.dispatchEvent(new Event("unreachable")));
  addEventListener("online", retryNow);
  for (;;) {
    await inSight();
    try {
      await listen();
      line.dispatchEvent(new Event("unreachable")); // the server ended the stream: it stops, or starts anew
    } catch (error) {
      if (error instanceof ApiError) line.dispatchEvent(new Event("reached"));
    }
    wait = Math.min(LONGEST_WAIT, wait ? 2 * wait : 500);
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, wait);
    });
  }
}

/** Try to reach the server at once. */
export function retryNow() {
  wait = 0;
  wake();
}

/** A page that nobody sees does not listen: a browser opens six connections to a server, for all its pages together. */
async function inSight() {
  while (document.hidden)
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

async function listen() {
  const stop = new AbortController();
  document.addEventListener("visibilitychange", () => document.hidden && stop.abort(), { signal: stop.signal });
  let timer = setTimeout(() => stop.abort(), SILENCE);
  try {
    if (store.model === null) await refreshModel();
    for await (const event of events("/api/events", stop.signal)) {
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE);
      wait = 0;
      line.dispatchEvent(new Event("reached"));
      if (event.type === "version") await noticeVersion(event.data.version, event.data.what);
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}
