// Asking the API server: often while something changes and somebody looks, seldom otherwise, never while hidden.

const LIVE = 2000;
const STILL = 20000;
const SLOWEST = 30000;

const wanted = new URLSearchParams(location.search);

/** Return the address of an answer about this page's task instance. */
export function address(what, more = {}) {
  const query = new URLSearchParams(more);
  for (const name of ["run_id", "task_id", "map_index"]) query.set(name, wanted.get(name) ?? "");
  return `api/dags/${encodeURIComponent(wanted.get("dag_id") ?? "")}/${what}?${query}`;
}

/** Call `told({ page, offset })`, or `told({ refused: status })`, or `told({ broken: why })`, on each change. */
export function follow(told) {
  let tag = "";
  let live = true;
  let failures = 0;
  let timer = 0;

  async function once() {
    const answer = await fetch(address("job"), { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    const date = Date.parse(answer.headers.get("Date") ?? "");
    const offset = Number.isNaN(date) ? 0 : date - Date.now();
    if (answer.status === 304) return told({ offset });
    if (answer.status === 401 || answer.status === 403 || answer.status === 404) {
      tag = "";
      live = false;
      return told({ refused: answer.status });
    }
    if (!answer.ok) throw new Error(`the API server answered ${answer.status}`);
    const page = await answer.json();
    tag = answer.headers.get("ETag") ?? "";
    live = page.live;
    return told({ page, offset });
  }

  async function again() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      await once();
      failures = 0;
    } catch (error) {
      failures += 1;
      told({ broken: error.message });
    }
    const pause = failures ? Math.min(SLOWEST, LIVE * 2 ** failures) : live ? LIVE : STILL;
    timer = setTimeout(again, pause);
  }

  document.addEventListener("visibilitychange", again);
  again();
}
