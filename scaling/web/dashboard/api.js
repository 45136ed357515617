// Requests to the page's own origin. Keys go into a header, never into an address the page makes itself. Where people sign
// in, the browser adds the cookie of the sign-in, and there is no key.

const REQUEST_TIMEOUT = 10_000; // ms; a poll that takes longer counts as a failed one
const SLOW_TIMEOUT = 60_000; // of what is worked out once, for one question
const READ_KEY = "tidemark.key"; // one that was typed in; it may open reading only
const ORDER_KEY = "tidemark.order-key";
const FUNCTION_KEY = new URLSearchParams(location.search).get("code"); // the page's own; passed on to reads

let signedIn = null; // who the server says is signed in
let mayOrder = null; // whether their role gives orders; null where no role is asked for

/** The server answered with an error, or not at all (`status` 0). */
class ApiError extends Error {
  constructor(message, status, told = false) {
    super(message);
    this.status = status;
    this.told = told; // the message is the app's
  }

  /** The host refuses a key without a word; a refusal of the app's own says what is missing. */
  get wantsKey() {
    return (this.status === 401 || this.status === 403) && !this.told;
  }

  /** The sign-in is over. It begins with a page that is loaded, not with a request of the page's. */
  get wantsSignIn() {
    return this.status === 401 && this.told;
  }
}

const readKey = () => sessionStorage.getItem(READ_KEY) ?? FUNCTION_KEY;
const keepReadKey = (key) => sessionStorage.setItem(READ_KEY, key);
const orderKey = () => sessionStorage.getItem(ORDER_KEY) ?? readKey();
const keepOrderKey = (key) => sessionStorage.setItem(ORDER_KEY, key);

function readApi(path, parameters = {}, timeout = REQUEST_TIMEOUT) {
  const url = new URL(path, location.href);
  url.search = "";
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return request(url, { method: "GET" }, readKey(), timeout);
}

function orderApi(path, body, timeout = REQUEST_TIMEOUT) {
  const url = new URL(path, location.href);
  url.search = "";
  return request(url, { method: "POST", body: JSON.stringify(body) }, orderKey(), timeout);
}

async function request(url, options, key, timeout = REQUEST_TIMEOUT) {
  const headers = { Accept: "application/json" };
  if (options.body) headers["Content-Type"] = "application/json";
  if (key) headers["x-functions-key"] = key;
  let response, text;
  try {
    response = await fetch(url, { ...options, headers, cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(timeout) });
    if (response.type === "opaqueredirect") throw new ApiError("sign in again", 401, true); // to where people sign in
    text = await response.text();
  } catch (error) {
    if (error instanceof ApiError) throw error;
    const timedOut = error.name === "TimeoutError";
    throw new ApiError(timedOut ? `no answer within ${timeout / 1000} s` : "the server cannot be reached", 0);
  }
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {
    if (response.ok) throw new ApiError("the answer is not JSON", response.status);
  }
  if (!response.ok) {
    const challenged = /^Bearer\b/i.test(response.headers.get("WWW-Authenticate") ?? ""); // the platform's word for "sign in"
    throw new ApiError(answer?.error ?? `HTTP ${response.status}`, response.status, challenged || Boolean(answer?.error));
  }
  return answer;
}
