// The admin API, read with a key. What has not changed is not sent again.

const KNOWN = 60;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Api {
  constructor(key, fetcher = (...given) => fetch(...given)) {
    this.key = key;
    this.fetcher = fetcher;
    this.known = new Map();
  }

  async get(path, query = {}, signal = undefined) {
    const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const url = `admin/v1/${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
    const before = this.known.get(url);
    const headers = { authorization: `Bearer ${this.key}` };
    if (before) headers["if-none-match"] = before.tag;
    let response;
    try {
      response = await this.fetcher(url, { headers, cache: "no-store", credentials: "omit", signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The gateway does not answer.");
    }
    if (response.status === 304 && before) return before.data;
    if (!response.ok) throw new ApiError(response.status, await said(response));
    const data = await response.json();
    this.known.delete(url);
    this.known.set(url, { tag: response.headers.get("etag"), data });
    if (this.known.size > KNOWN) this.known.delete(this.known.keys().next().value);
    return data;
  }
}

async function said(response) {
  try {
    const problem = await response.json();
    return problem.detail ?? problem.title ?? `The gateway answered ${response.status}.`;
  } catch {
    return `The gateway answered ${response.status}.`;
  }
}
