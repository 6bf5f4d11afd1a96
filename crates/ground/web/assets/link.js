// The way to the page's program: the token, one stream of events, and acts.
//
// The token comes in the address once, as `?token=` or, what no server is sent, as `#token=`, and is taken out of it.
// It stays in this tab (sessionStorage is of one tab and one port, unlike a cookie) and goes out as a header, which no
// other site can make a browser send.

const KEY = 'ebb-token';
// The program says at least every 10 s that it is there.
const SILENCE = 25_000;

export class Refused extends Error {
  constructor(code, text) {
    super(text);
    this.code = code;
  }
}

/// Whether there was one.
export function takeToken() {
  const url = new URL(location.href);
  const after = /^#token=(\w*)$/.exec(url.hash)?.[1];
  const given = url.searchParams.get('token') ?? after;
  if (given === undefined) return false;
  sessionStorage.setItem(KEY, given.trim());
  url.searchParams.delete('token');
  if (after !== undefined) url.hash = '';
  history.replaceState(null, '', url.pathname + url.search + url.hash);
  return true;
}

export const hasToken = () => Boolean(sessionStorage.getItem(KEY));

/// An answer, or what the program says is wrong.
export async function request(path, options = {}) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ''}`, ...options.headers };
  const answer = await fetch(path, { ...options, headers, cache: 'no-store' });
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer;
}

export const ask = async path => (await request(path)).json();

export const askText = async path => (await request(path)).text();

/// The servers' management controllers are asked, once.
export const measure = async () => (await request('/api/measure', { method: 'POST' })).json();

export const act = async what =>
  (await request('/api/act', { method: 'POST', body: JSON.stringify(what), headers: { 'content-type': 'application/json' } })).json();

/// Events as `[name, body]`, until the stream ends, which returns, or it falls silent or the page is left, which
/// throws.
export async function* events() {
  const aborter = new AbortController();
  const abort = () => aborter.abort();
  let timer = setTimeout(abort, SILENCE);
  addEventListener('pagehide', abort);
  let rest = '';
  try {
    const answer = await request('/api/stream', { signal: aborter.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE);
      const blocks = (rest + value).split('\n\n');
      rest = blocks.pop();
      for (const block of blocks) {
        const name = /^event: ?(.*)$/m.exec(block)?.[1];
        const data = /^data: ?(.*)$/m.exec(block)?.[1];
        if (name && data !== undefined) yield [name, JSON.parse(data)];
      }
    }
  } finally {
    clearTimeout(timer);
    removeEventListener('pagehide', abort);
    abort();
  }
}
