// Act: the buttons of an administrator. Each asks before it acts, and says what the command line would be.

import { act } from './link.js';
import { Confirmation } from './confirm.js';
import { clock, element, say } from './words.js';
import { gear } from './now.js';

const by = id => document.getElementById(id);

export class Act {
  constructor() {
    by('act-servers').addEventListener('submit', event => {
      event.preventDefault();
      const servers = Number(by('wish').value);
      this.confirm({ title: `Keep ${servers} servers awake?`, what: 'Until somebody changes it. Load above what they sustain waits.', command: `ebb gear set ${servers}`, act: { gear_set: { servers } } });
    });
    by('auto').addEventListener('click', () =>
      this.confirm({ title: 'Let load and forecast choose?', what: 'Servers wake and sleep as they are needed, from now on.', command: 'ebb gear auto', act: 'gear_auto' }));
    by('act-server').addEventListener('submit', event => {
      event.preventDefault();
      this.server(event.submitter?.value ?? 'begin', Number(by('which').value));
    });
    this.confirmation = new Confirmation(by('confirm-number'), asked => this.confirmed(asked));
  }

  server(kind, server) {
    if (!this.store?.servers.some(known => known.id === server)) return this.result(`There is no server ${server}.`, true);
    const asked = {
      begin: { title: `Begin maintenance of server ${server}?`, what: 'Others take over what it serves, and wake for that if they must. It may be stopped once the page says so.', command: `ebb maintenance server-${server}`, act: { maintenance: { server, end: false } } },
      end: { title: `End the maintenance of server ${server}?`, what: 'It takes part again.', command: `ebb maintenance server-${server} --end`, act: { maintenance: { server, end: true } } },
      lost: { title: `Declare server ${server} lost?`, what: 'Its data is rebuilt on other servers of its gear group, which wake for that. It cannot come back with its data. This cannot be undone.', command: `ebb lost ${server}`, act: { lost: { server } }, type: String(server) },
    }[kind];
    this.confirm(asked);
  }

  confirm(asked) {
    this.confirmation.ask(asked);
  }

  async confirmed(asked) {
    if (asked.run) return asked.run();
    this.result('Asking the leader …');
    try {
      await act(asked.act);
      this.result(`Decided at ${clock(Date.now())}: ${asked.command}. Now shows how far it is.`);
    } catch (error) {
      this.result(`${asked.command}: ${error.message}`, true);
    }
  }

  result(text, bad = false) {
    by('act-result').classList.toggle('bad', bad);
    say(by('act-result'), text);
  }

  render(store) {
    this.store = store;
    by('act-looks').hidden = store.rights.act;
    document.querySelectorAll('#view-act :is(button, input):not(dialog *)').forEach(control => (control.disabled = !store.rights.act));
    if (!store.now) return;
    const { now } = store;
    say(by('act-gear'), `${now.gear.servers_awake} of ${now.servers} servers are awake; ${gear(now)}.`);
    by('wish').max = now.servers;
    const out = now.maintenance.length === 0 ? 'No server is in maintenance.' : `In maintenance: ${now.maintenance.join(', ')}.`;
    say(by('act-maintenance'), out);
    this.gears(now, store.rights.act);
  }

  gears(now, may) {
    const key = `${now.replicas} ${now.gear.mode} ${now.gear.gear} ${now.gear.servers} ${may}`;
    if (this.gearsShown === key) return;
    this.gearsShown = key;
    const focused = document.activeElement?.dataset.gear;
    by('gears').replaceChildren(...Array.from({ length: now.replicas }, (_, n) => {
      const wish = n + 1;
      const button = element('button', `Gear ${wish} of ${now.replicas}`);
      button.type = 'button';
      button.disabled = !may;
      button.dataset.gear = wish;
      button.setAttribute('aria-pressed', String(now.gear.mode === 'manual' && now.gear.gear === wish));
      button.addEventListener('click', () =>
        this.confirm({ title: `Keep ${wish} of ${now.replicas} gear groups awake?`, what: 'Until somebody changes it. Every write still has all its copies.', command: `ebb gear set ${wish}/${now.replicas}`, act: { gear_set: { gear: wish } } }));
      return button;
    }));
    if (focused) by('gears').querySelector(`[data-gear="${focused}"]`)?.focus();
  }
}
