// The page: follows the stream, keeps what it had when that breaks, and draws the view that is chosen.

import { banner, choose, start } from './follow.js';
import { Now, gear } from './now.js';
import { Why } from './why.js';
import { WhatIf } from './whatif.js';
import { Act } from './act.js';
import { Browse } from './browse.js';
import { clock, say, watts } from './words.js';

const by = id => document.getElementById(id);
const VIEWS = ['now', 'why', 'whatif', 'act', 'browse'];

const store = { rights: { act: false }, facts: null, servers: [], notices: [], outlook: { hours: [], plan: [], shifts: [] }, now: null };
const now = new Now(id => (location.hash = `#why/${id}`));
const why = new Why(now.strip);
const whatif = new WhatIf();
const act = new Act();
const browse = new Browse(asked => act.confirm(asked));
let waits = false;

function view() {
  const [name, id] = location.hash.slice(1).split('/');
  return [VIEWS.includes(name) ? name : 'now', /^\d+$/.test(id ?? '') ? Number(id) : undefined];
}

function render() {
  if (waits) return;
  waits = true;
  requestAnimationFrame(() => {
    waits = false;
    const [name, id] = view();
    choose(VIEWS, name);
    if (name !== 'browse') browse.leave();
    if (!store.facts) return;
    why.choose(id);
    ({ now, why, whatif, act, browse })[name].render(store);
    head();
    if (store.now) {
      document.body.dataset.state = 'drawn';
      // Since the page was asked for.
      document.body.dataset.millis ??= Math.round(performance.now());
    }
  });
}

function head() {
  say(by('cluster'), store.facts.cluster);
  if (!store.now) return say(by('summary'), 'Asking the metadata leader …');
  const text = `${store.now.gear.servers_awake} of ${store.now.servers} servers awake, ${gear(store.now)}`;
  say(by('summary'), text);
  document.title = `${store.now.gear.servers_awake}/${store.now.servers} awake, ${watts(store.now.power?.modelled_watts)} – Ebb`;
}

const had = () => (store.now ? ` What you see is of ${clock(store.now.at_unix_millis)}.` : '');

function trouble({ since_unix_millis: since, why: reason }) {
  banner(`The cluster has not answered since ${clock(since)}: ${reason}.${had()} The page keeps asking.`);
}

const on = {
  rights(body) {
    store.rights = body;
  },
  hello(body) {
    Object.assign(store, body);
    now.hello(store);
    banner();
    if (body.trouble) trouble(body.trouble);
  },
  now(body) {
    // A page that fell behind gets what it has seen already.
    if (store.now && body.now.at_unix_millis <= store.now.at_unix_millis) return;
    store.now = body.now;
    if (body.notices) store.notices = store.notices.concat(body.notices).slice(-500);
    now.add(body.now);
    banner();
  },
  outlook(body) {
    store.outlook = body;
  },
  trouble,
};

start({
  on,
  drawn: render,
  silent: since => banner(`The program that serves this page has not answered since ${clock(since)}: is ebb page, or ebb dev, running?${had()} The page keeps trying.`),
});
