// The scaling log as far as it is loaded.
//
// Each scope (one target, or "" for all) has its own cursor into the past and a floor: from the floor on, its
// entries are complete. Entries below a scope's floor may be known through another scope, but are not shown in
// this one, since others between them would be missing. New entries arrive for all targets at once.

const PAGE = 200;
const LIVE_PAGE = 1000;
const LIVE_PAGES = 10; // of one poll; after a longer absence everything is loaded anew
const OVERLAP = 30; // s; rows are written in parallel, so an older one may appear after a newer one
const KEPT = 60_000; // entries held in memory before everything is loaded anew

const idOf = (entry) => JSON.stringify([entry.target, entry.at, entry.kind, entry.key]);

class ScalingLog {
  constructor() {
    this.reset();
  }

  reset() {
    this.entries = new Map();
    this.byScope = new Map([["", []]]);
    this.unsorted = new Set();
    this.scopes = new Map();
    this.newest = null;
    this.generation = (this.generation ?? 0) + 1;
  }

  /** Entries of a scope from its floor on, newest first. */
  list(scope) {
    const all = this.sorted(scope);
    const { floor } = this.scope(scope);
    let end = all.length;
    while (end && all[end - 1].at < floor) end -= 1;
    return end === all.length ? all : all.slice(0, end);
  }

  atEnd(scope) {
    return this.scope(scope).continuation === null;
  }

  /** Loads one more page of a scope; the same promise for all who ask meanwhile. */
  older(scope) {
    const cursor = this.scope(scope);
    if (cursor.continuation === null) return Promise.resolve();
    cursor.loading ??= this.loadPage(scope, cursor).finally(() => { cursor.loading = null; });
    return cursor.loading;
  }

  /** Loads pages until the scope is complete from `since` on, at most `pages`; true when it is. */
  async reach(scope, since, pages = 30) {
    const { generation } = this;
    for (let page = 0; page < pages && this.scope(scope).floor > since; page += 1) {
      await this.older(scope);
      if (this.generation !== generation) return false;
    }
    return this.scope(scope).floor <= since;
  }

  /** Fetches what is new since the newest entry. `now` is the server's time. */
  async poll(now) {
    if (this.newest === null) {
      await this.older("");
      this.newest ??= now;
      return;
    }
    let continuation = null;
    for (let page = 0; page < LIVE_PAGES; page += 1) {
      const answer = await readApi("scaling/log", { since: this.newest - OVERLAP, limit: LIVE_PAGE, continuation });
      this.add(answer.entries);
      continuation = answer.continuation;
      if (!continuation) break;
    }
    if (continuation || this.entries.size > KEPT) {
      this.reset();
      await this.older("");
    }
  }

  async loadPage(scope, cursor) {
    const { generation } = this;
    const answer = await readApi("scaling/log", { target: scope, limit: PAGE, continuation: cursor.continuation });
    if (this.generation !== generation) return;
    this.add(answer.entries);
    cursor.continuation = answer.continuation ?? null;
    const oldest = answer.entries.at(-1);
    if (cursor.continuation === null) cursor.floor = -Infinity;
    else if (oldest) cursor.floor = oldest.at;
  }

  add(entries) {
    for (const entry of entries) {
      const id = idOf(entry);
      const known = this.entries.get(id);
      if (known) {
        Object.assign(known, entry);
        continue;
      }
      entry.id = id;
      this.entries.set(id, entry);
      if (!this.byScope.has(entry.target)) this.byScope.set(entry.target, []);
      for (const scope of ["", entry.target]) {
        this.byScope.get(scope).push(entry);
        this.unsorted.add(scope);
      }
      if (this.newest === null || entry.at > this.newest) this.newest = entry.at;
    }
  }

  sorted(scope) {
    const all = this.byScope.get(scope) ?? [];
    if (this.unsorted.delete(scope)) all.sort((a, b) => b.at - a.at || (a.id < b.id ? 1 : -1));
    return all;
  }

  scope(scope) {
    if (!this.scopes.has(scope)) this.scopes.set(scope, { floor: Infinity, continuation: undefined, loading: null });
    return this.scopes.get(scope);
  }
}
