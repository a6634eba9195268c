/** What the server says of the model, the same for all views, and the one way to change it. */

import { get, post, upload } from "./api.js";

/** Tells of `model` (its summary is another one) and `changed` (so are its classes; `detail.what` says how, if others did it). */
export const store = new EventTarget();

/** @type {null | Record<string, any>} */
store.model = null;

let pending = Promise.resolve();
let known = null; // the version that this page has shown

/** Ask for the summary of the model. */
export async function refreshModel() {
  store.model = await get("/api/model");
  known ??= store.model.version;
  store.dispatchEvent(new Event("model"));
  return store.model;
}

/** Change the model by a request of JSON, and return the change. */
export const changeBy = (path, values) => change(() => post(path, values));

/** Change the model by a request with files, and return the change. */
export const changeByUpload = (path, fields, options) => change(() => upload(path, fields, options));

function change(send) {
  const sent = (async () => {
    const made = await send();
    known = made.version;
    await refreshModel().catch(() => null); // the change is made; the summary follows with the next event
    store.dispatchEvent(new CustomEvent("changed", { detail: { what: null } }));
    return made;
  })();
  pending = sent.catch(() => null);
  return sent;
}

/** Show a version that the server tells of, unless this page made it itself. */
export async function noticeVersion(version, what) {
  await pending;
  if (version === known) return;
  const { version: present } = await refreshModel();
  if (present === known) return; // the event came late: this page has shown what followed, or nothing before
  known = present;
  store.dispatchEvent(new CustomEvent("changed", { detail: { what: what ?? "the classifier changed" } }));
}
