// What both faces do alike: show the view that was chosen, say what is wrong, and follow the stream of events. It is
// tried again when it breaks, and without a token that is known the page is locked.

import { Refused, events, hasToken, takeToken } from './link.js';
import { say } from './words.js';

const by = id => document.getElementById(id);
const RETRY_FIRST = 500;
const RETRY_MOST = 5000;

// A browser keeps pages that were left, with their connections, of which it has six for one program. So a page that is
// left gives its own back (`events`), and follows again when it is shown.
let left;
addEventListener('pagehide', () => (left = new Promise(back => addEventListener('pageshow', back, { once: true }))));

/// Says what is wrong, once: the text changes only with the cause.
export function banner(text) {
  by('banner').hidden = !text;
  say(by('banner'), text ?? '');
}

export function choose(views, name) {
  for (const other of views) by(`view-${other}`).hidden = other !== name;
  document.querySelectorAll('nav a').forEach(link => {
    if (link.hash === `#${name}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  });
}

function lock(title, reason) {
  by('views').hidden = true;
  by('locked').hidden = false;
  by('locked-title').textContent = title;
  by('locked-why').textContent = reason;
  document.body.dataset.state = 'locked';
}

/// `begin` comes before each try, `on[name]` and then `drawn` with each event, `silent` when it broke: no answer since
/// that time.
async function follow({ begin, on, drawn, silent }) {
  let pause = RETRY_FIRST;
  let since;
  let assets;
  for (;;) {
    begin?.();
    left = undefined;
    try {
      for await (const [name, body] of events()) {
        pause = RETRY_FIRST;
        since = undefined;
        // The program was replaced, and may send what this page's modules do not understand.
        if (name === 'rights' && body.assets !== (assets ??= body.assets)) return location.reload();
        on[name]?.(body);
        drawn();
      }
    } catch (error) {
      if (error instanceof Refused && error.code === 401) return lock('This token is wrong, or stale', error.message);
      if (error instanceof Refused && error.code === 403) return lock('This page goes by another name', error.message);
    }
    if (left) {
      await left;
      continue;
    }
    since ??= Date.now();
    silent(since);
    await new Promise(resolve => setTimeout(resolve, pause));
    pause = Math.min(RETRY_MOST, pause * 2);
  }
}

/// Takes the token from the address, draws, and follows.
export function start(face) {
  takeToken();
  addEventListener('hashchange', () => {
    // Another view, or a new URL with a token in the same tab.
    if (takeToken()) return location.reload();
    face.drawn();
    by('views').focus({ preventScroll: true });
  });
  face.drawn();
  if (hasToken()) follow(face);
  else lock('This page needs a token', 'The address has none, and this tab has kept none.');
}
