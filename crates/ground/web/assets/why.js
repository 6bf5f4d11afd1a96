// Why: one server's reason, what the leader decided and found, and the finished shifts.

import { ask } from './link.js';
import { STATES, bytes, clock, count, dated, decimal, element, letter, say, span, watts } from './words.js';

const by = id => document.getElementById(id);
const ROWS_SHOWN = 200;
const CHOOSE = 'Each server is awake, or may sleep, for one reason. Choose one below, or in the strip of Now.';

export class Why {
  constructor(strip) {
    this.strip = strip;
    by('filter').addEventListener('input', () => this.list());
  }

  /// `id`: the chosen server, or undefined.
  choose(id) {
    if (this.id === id) return;
    this.id = id;
    this.one = undefined;
    this.fault = undefined;
    this.asked = 0;
    this.shown = undefined;
    this.notes = undefined;
  }

  render(store) {
    this.store = store;
    if (this.id !== undefined && store.now && this.asked !== store.now.at_unix_millis) {
      this.asked = store.now.at_unix_millis;
      this.read(this.id);
    }
    this.list();
    this.notices();
    this.shifts();
    this.server();
  }

  async read(id) {
    try {
      const one = await ask(`/api/servers/${id}`);
      if (id === this.id) [this.one, this.fault] = [one, undefined];
    } catch (error) {
      if (id === this.id) this.fault = error.message;
    }
    this.server();
  }

  server() {
    const one = this.one;
    if (!one) {
      delete by('one-title').dataset.shown;
      say(by('one-title'), this.id === undefined ? 'Choose a server' : `Server ${this.id}`);
      say(by('one-why'), this.id === undefined ? CHOOSE : (this.fault ?? '…'));
      this.facts([]);
      return;
    }
    const title = by('one-title');
    if (title.dataset.shown !== `${one.id} ${one.letter}`) {
      title.dataset.shown = `${one.id} ${one.letter}`;
      title.replaceChildren(letter(one.letter), ` Server ${one.id}: ${STATES[one.letter]}`);
    }
    const sentence = one.why_text[0].toUpperCase() + one.why_text.slice(1);
    say(by('one-why'), `${sentence}.${this.fault ? ` (As of ${clock(one.at_unix_millis)}: ${this.fault})` : ''}`);
    this.facts(facts(one, this.since(one)));
  }

  /// Only what differs is replaced: somebody may be selecting the rest.
  facts(rows) {
    const names = rows.map(([name]) => name).join('\n');
    if (this.names !== names) by('one-facts').replaceChildren(...rows.flatMap(([name]) => [element('dt', name), element('dd')]));
    this.names = names;
    by('one-facts').querySelectorAll('dd').forEach((text, n) => say(text, rows[n][1]));
  }

  since(one) {
    const row = this.store.servers.findIndex(server => server.id === one.id);
    const at = this.strip.since(row);
    return at === undefined ? `before ${clock(this.strip.from)}, when this page began to watch` : `${clock(at)}, ${span(one.at_unix_millis - at)} ago`;
  }

  list() {
    const { servers, now } = this.store ?? {};
    if (!now) return;
    const filter = by('filter').value.trim().toLowerCase();
    const fits = (server, state) =>
      filter === '' || String(server.id) === filter || state.includes(filter) || `rack ${server.rack}` === filter || (server.logger && 'logger'.includes(filter));
    const found = [];
    servers.forEach((server, row) => {
      if (fits(server, STATES[now.letters[row]])) found.push(row);
    });
    const shown = found.slice(0, ROWS_SHOWN);
    const key = `${this.id} ${filter} ${shown.map(row => `${row}${now.letters[row]}`).join('')}`;
    if (key === this.shown) return;
    this.shown = key;
    const focused = by('servers').contains(document.activeElement) ? document.activeElement.hash : undefined;
    by('servers').tBodies[0].replaceChildren(...shown.map(row => this.row(servers[row], now.letters[row], row)));
    if (focused) by('servers').querySelector(`a[href="${focused}"]`)?.focus();
    const more = found.length - shown.length;
    say(by('servers-more'), found.length === 0 ? 'No server fits.' : more > 0 ? `and ${count(more)} more: narrow the filter` : '');
  }

  row(server, state, row) {
    const made = element('tr');
    made.setAttribute('aria-selected', String(server.id === this.id));
    const link = element('a', `server ${server.id}`);
    link.href = `#why/${server.id}`;
    const first = element('td');
    first.append(link);
    const second = element('td');
    second.append(letter(state), ` ${STATES[state]}`);
    const since = this.strip.since(row);
    const group = server.logger ? 'logger' : server.pool === 0 ? String(server.gear_group) : `pool ${server.pool}`;
    made.append(first, second, element('td', String(server.rack)), element('td', group), element('td', since === undefined ? '–' : clock(since)));
    return made;
  }

  notices() {
    const all = this.store.notices;
    const own = this.id === undefined ? all : all.filter(told => mentions(told.notice, this.id));
    const key = `${this.id} ${own.length} ${own[own.length - 1]?.number}`;
    if (key === this.notes) return;
    this.notes = key;
    say(by('notices-of'), this.id === undefined ? '' : `of server ${this.id}, and all shifts`);
    by('notices-none').hidden = own.length > 0;
    by('notices').replaceChildren(...own.slice().reverse().map(told => {
      const item = element('li');
      const time = element('time', dated(told.at_unix_millis));
      time.dateTime = new Date(told.at_unix_millis).toISOString();
      item.append(time, element('span', told.text));
      return item;
    }));
  }

  shifts() {
    const shifts = this.store.outlook.shifts;
    if (this.shiftsShown === shifts) return;
    this.shiftsShown = shifts;
    by('shifts-none').hidden = shifts.length > 0;
    by('shifts').hidden = shifts.length === 0;
    by('shifts').tBodies[0].replaceChildren(...shifts.slice().reverse().map(shift => {
      const made = element('tr');
      const size = (gear, servers) => `${servers} (gear ${gear})`;
      made.append(element('td', clock(shift.at_unix_millis)), element('td', size(shift.from_gear, shift.from_servers)), element('td', size(shift.to_gear, shift.to_servers)), element('td', shift.why, 'wrap'), element('td', count(shift.woken)), element('td', count(shift.put_to_sleep)), element('td', span(shift.took_millis)));
      return made;
    }));
  }
}

/// Whether a notice is of this server; shifts concern all.
function mentions(notice, id) {
  const [[kind, body]] = typeof notice === 'string' ? [[notice, {}]] : Object.entries(notice);
  return kind === 'shift' || body.server === id || body.spare === id || body.of === id;
}

function waitsFor(one) {
  const why = one.why;
  if (one.power.maintenance_unix_millis != null) return one.power.may_be_stopped ? 'the end of its maintenance; it may be stopped' : 'others to take over what it serves';
  if (why.dwell) return `sleep, in ${span(why.dwell.left_millis)}`;
  if (why.quiet_too_short) return `being needed, in about ${span(why.quiet_too_short.quiet_millis)}`;
  if (why === 'no_power_cycle') return 'its next power cycle to be earned';
  if (one.letter === 'D') return 'others to take over what it serves';
  if (one.letter === 'W') return 'its first heartbeat, then for its replicas to catch up';
  if (one.letter === 'F') return 'its process, or to be declared lost';
  if (one.vitals?.catching_up > 0) return `${one.vitals.catching_up} of its replicas to catch up`;
  return undefined;
}

function facts(one, since) {
  const { vitals, power } = one;
  const rows = [
    [`${STATES[one.letter]} since`, since],
    ['waits for', waitsFor(one)],
    ['sleeps', one.depth == null ? undefined : one.depth],
    ['draws, modelled', one.modelled_watts == null ? undefined : watts(one.modelled_watts)],
    ['sleep would save, modelled', one.sleep_saves_modelled_watts == null ? undefined : watts(one.sleep_saves_modelled_watts)],
    ['serves', `${count(one.primaries)} groups as primary; holds writes for ${count(one.holder_of)} slots of others`],
    ['load now', vitals ? `${count(vitals.in_flight)} requests in flight` : undefined],
    ['holds for sleepers', vitals ? bytes(vitals.debt_bytes) : undefined],
    ['stores', vitals ? `${bytes(vitals.used_bytes)} of ${bytes(vitals.capacity_bytes)}` : undefined],
    ['stays awake because', power.kept_awake ?? undefined],
    ['in maintenance since', power.maintenance_unix_millis == null ? undefined : clock(power.maintenance_unix_millis)],
    ['switch', one.switch_trouble ?? undefined],
    ['power cycles', `${count(power.cycles)} since it is part of the cluster${power.cycles_saved == null ? '' : `; ${decimal(power.cycles_saved)} saved up`}`],
    ['exam failed', power.exam?.faults.length > 0 ? power.exam.faults.join('; ') : undefined],
    ...power.paths.map(path => [`wake path ${path.name}`, path.proven ? wakes(path) : path.failure ? `did not wake it: ${path.failure.why}` : 'never tested']),
    ['last heartbeat', one.heartbeat_age_millis == null ? undefined : `${span(one.heartbeat_age_millis)} ago`],
    ['address', one.address],
  ];
  return rows.filter(([, text]) => text !== undefined);
}

const wakes = path => (path.success ? `woke it at ${clock(path.success.at_unix_millis)} in ${span(path.success.took_millis)}` : 'needs no proof: both ends are on one machine');
