/** The token of the printed link, kept for this tab alone and never shown in its address. */

const KEY = "protograph-token";
const IN_LINK = /[?&#]token=([^&#]+)/;

/** Take the token out of the address of the page, where the printed link has it. */
export function takeToken() {
  if (!IN_LINK.test(location.href)) return;
  setToken(location.href);
  history.replaceState(null, "", location.pathname);
}

/** Return the token, or null. */
export const token = () => sessionStorage.getItem(KEY);

/** Keep another token: of a printed link, or as it is. */
export function setToken(text) {
  const found = IN_LINK.exec(text);
  sessionStorage.setItem(KEY, found ? decodeURIComponent(found[1]) : text.trim());
}
