/** The token of the printed link, kept for this tab alone and never shown in its address. */

const KEY = "protograph-token";
const PARAMETER = "token";

/** Take the token out of the address of the page, where the printed link has it. */
export function takeToken() {
  const address = new URL(location.href);
  const token = address.searchParams.get(PARAMETER);
  if (token === null) return;
  setToken(token);
  address.searchParams.delete(PARAMETER);
  history.replaceState(null, "", address);
}

/** Return the token, or null. */
export const token = () => sessionStorage.getItem(KEY);

/** Keep another token: of a printed link, or as it is. */
export function setToken(text) {
  const found = /[?&#]token=([^&#]+)/.exec(text);
  sessionStorage.setItem(KEY, found ? decodeURIComponent(found[1]) : text.trim());
}
