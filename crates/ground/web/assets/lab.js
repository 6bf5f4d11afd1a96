// The lab's page: follows the stream of campaigns, keeps what it had when that breaks, and draws the view that is
// chosen.

import { banner, choose, start } from './follow.js';
import { Query } from './labquery.js';
import { Live } from './lablive.js';
import { Plan } from './labplan.js';
import { clock, say } from './words.js';

const by = id => document.getElementById(id);
const VIEWS = ['query', 'live', 'plan'];
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
    choose(VIEWS, name);
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

start({
  begin() {
    // A restarted program counts from the start again.
    store.base = undefined;
    store.points = [];
  },
  on,
  drawn: render,
  silent: since => banner(`The program that serves this page has not answered since ${clock(since)}: is ebb lab serve running? The page keeps trying.`),
});
