// The lab's page: follows the stream of campaigns, keeps what it had when that breaks, and draws the view that is chosen.

import { Refused, events, hasToken, takeToken } from './link.js';
import { Query } from './labquery.js';
import { Live } from './lablive.js';
import { Plan } from './labplan.js';
import { clock, say } from './words.js';

const by = id => document.getElementById(id);
const VIEWS = ['query', 'live', 'plan'];
const RETRY_FIRST = 500;
const RETRY_MOST = 5000;
// As many as the program keeps.
const POINTS_MOST = 7200;

const store = { rights: { act: false }, results: null, campaigns: [], points: [] };
const views = { query: new Query(), live: new Live(), plan: new Plan() };
let waits = false;

function render() {
  if (waits) return;
  waits = true;
  requestAnimationFrame(() => {
    waits = false;
    const name = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : 'query';
    for (const other of VIEWS) by(`view-${other}`).hidden = other !== name;
    document.querySelectorAll('nav a').forEach(link => {
      if (link.hash === `#${name}`) link.setAttribute('aria-current', 'page');
      else link.removeAttribute('aria-current');
    });
    if (!store.results) return;
    views[name].render(store);
    head();
    document.body.dataset.state = 'drawn';
    // Since the page was asked for.
    document.body.dataset.millis ??= Math.round(performance.now());
  });
}

function head() {
  say(by('file'), store.results.file);
  const running = store.campaigns.find(campaign => campaign.phase === 'running');
  const results = store.campaigns.reduce((sum, campaign) => sum + campaign.done, 0);
  const text = running ? `${running.name}: ${running.done} of ${running.total ?? '?'} runs` : `${results} results, nothing runs`;
  say(by('summary'), text);
  document.title = `${text} – Ebb lab`;
}

/// Says what is wrong, once: the text changes only with the cause.
function banner(text) {
  by('banner').hidden = !text;
  say(by('banner'), text ?? '');
}

const on = {
  rights(body) {
    store.rights = body;
  },
  lab(body) {
    store.results = body.results;
    store.campaigns = body.campaigns;
    // What it has already is sent again only after the stream broke.
    store.points = store.points.slice(0, Math.max(0, body.first - (store.base ?? 0))).concat(body.points);
    store.base ??= body.first;
    const over = store.points.length - POINTS_MOST;
    if (over > 0) {
      store.points = store.points.slice(over);
      store.base += over;
    }
    banner(body.results.trouble ? `The results cannot be read: ${body.results.trouble}.` : undefined);
  },
};

function lock(title, reason) {
  by('views').hidden = true;
  by('locked').hidden = false;
  by('locked-title').textContent = title;
  by('locked-why').textContent = reason;
  document.body.dataset.state = 'locked';
}

async function follow() {
  let pause = RETRY_FIRST;
  let since;
  for (;;) {
    // A program that was started anew counts anew.
    store.base = undefined;
    store.points = [];
    try {
      for await (const [name, body] of events()) {
        pause = RETRY_FIRST;
        since = undefined;
        on[name]?.(body);
        render();
      }
    } catch (error) {
      if (error instanceof Refused && error.code === 401) return lock('This token is wrong, or stale', error.message);
      if (error instanceof Refused && error.code === 403) return lock('This page goes by another name', error.message);
    }
    since ??= Date.now();
    banner(`The program that serves this page has not answered since ${clock(since)}: is ebb lab serve running? The page goes on trying.`);
    await new Promise(resolve => setTimeout(resolve, pause));
    pause = Math.min(RETRY_MOST, pause * 2);
  }
}

takeToken();
addEventListener('hashchange', () => {
  render();
  by('views').focus({ preventScroll: true });
});
render();
if (hasToken()) follow();
else lock('This page needs a token', 'The address has none, and this tab has kept none.');
