// Now: what the cluster does, in figures, strips and charts.

import { Chart } from './chart.js';
import { measure } from './link.js';
import { Strip } from './strip.js';
import { STATES, bytes, clock, count, decimal, element, joules, letter, millis, say, span, tally, watts } from './words.js';

const by = id => document.getElementById(id);
// Points of a chart: what the program keeps, and what it sends until it sends everything again.
const POINTS_MOST = 4096;
const HOLDERS_SHOWN = 12;

function tile(id, value, text, { raw, share, bad } = {}) {
  const host = by(id);
  say(host.querySelector('dd'), value);
  say(host.querySelector('.more'), text);
  host.dataset.value = raw ?? '';
  host.classList.toggle('bad', Boolean(bad));
  const bar = host.querySelector('.bar i');
  if (bar) bar.style.width = `${Math.min(100, Math.max(0, (share ?? 0) * 100))}%`;
}

export class Now {
  constructor(openServer) {
    this.strip = new Strip(by('strip'), openServer);
    by('span').addEventListener('change', event => {
      this.strip.span = Number(event.target.value);
      this.strip.draw();
    });
    by('measure').addEventListener('click', () => this.measure());
    const number = value => decimal(value);
    this.power = new Chart(by('chart-power'), 'Power, modelled', 'W', [
      { label: 'modelled', colour: '--watts', hatched: true, say: watts },
      { label: 'all awake, modelled', colour: '--always', dash: [6, 4], say: watts },
      { label: 'oracle, modelled', colour: '--oracle', dash: [2, 4], say: watts },
    ]);
    this.load = new Chart(by('chart-load'), 'Load and servers awake', 'servers', [
      { label: 'servers awake', colour: '--awake-line', say: value => decimal(value) },
      { label: 'load', colour: '--load', say: number },
      { label: 'forecast of the hour', colour: '--forecast', dash: [6, 4], say: number },
      { label: 'forecast, high (90 %)', colour: '--forecast', edge: true, say: number },
      { label: 'forecast, low (10 %)', colour: '--forecast', edge: true, say: number },
    ], undefined, [3, 4]);
    this.latency = new Chart(by('chart-latency'), 'Latency, 99 % within', 'ms', [
      { label: 'reads', colour: '--load', say: millis },
      { label: 'writes', colour: '--watts', dash: [6, 4], say: millis },
    ]);
    this.hours = new Chart(by('chart-hours'), 'Hours: recorded, and planned', 'servers', [
      { label: 'servers awake', colour: '--awake-line', stepped: true, say: count },
      { label: 'peak load', colour: '--load', stepped: true, say: number },
      { label: 'forecast', colour: '--forecast', dash: [6, 4], stepped: true, say: number },
      { label: 'forecast, high (90 %)', colour: '--forecast', edge: true, stepped: true, say: number },
      { label: 'forecast, low (10 %)', colour: '--forecast', edge: true, stepped: true, say: number },
    ], () => this.seen / 1000, [3, 4]);
    this.columns = { power: [[], [], [], []], load: [[], [], [], [], [], []], latency: [[], [], []] };
  }

  hello(store) {
    const s = store.series;
    const parted = columns => part([s.at_unix_millis.map(millis => millis / 1000), ...columns], Math.max(5, 2 * s.stride_millis / 1000));
    this.columns = { power: parted([s.watts, s.always_on_watts, s.oracle_watts]), load: parted([s.servers_awake, s.load, s.forecast, s.forecast_high, s.forecast_low]), latency: parted([s.reads_p99_millis, s.writes_p99_millis]) };
    this.seen = store.now?.at_unix_millis ?? 0;
    this.strip.load(store.servers, store.strip, store.now?.at_unix_millis);
  }

  /// A second more.
  add(now) {
    const at = now.at_unix_millis / 1000;
    this.strip.add(now.at_unix_millis, now.letters);
    const { power, load, latency } = this.columns;
    const gap = this.seen > 0 && now.at_unix_millis - this.seen > 5000;
    this.seen = now.at_unix_millis;
    const push = (columns, values) => {
      if (gap && columns[0].length > 0) [at - 0.001, ...values.map(() => null)].forEach((value, n) => columns[n].push(value));
      [at, ...values].forEach((value, n) => columns[n].push(value ?? null));
      if (columns[0].length > POINTS_MOST) columns.forEach(column => column.splice(0, column.length - POINTS_MOST));
    };
    push(power, [now.power?.modelled_watts, now.power?.always_on_modelled_watts, now.power?.oracle_modelled_watts]);
    push(load, [now.gear.servers_awake, now.gear.load, now.gear.forecast, now.forecast_band?.high, now.forecast_band?.low]);
    push(latency, [now.latency?.reads?.p99_millis, now.latency?.writes?.p99_millis]);
  }

  render(store) {
    if (!store.now) return;
    by('measure').hidden = !store.facts.has_meters || !store.rights.act;
    this.tiles(store);
    this.legend(store.now);
    this.debts(store.now);
    this.strip.draw();
    this.power.show(this.columns.power);
    this.load.show(this.columns.load);
    this.latency.show(this.columns.latency);
    this.showHours(store.outlook);
    this.pools(store.now.pools);
    const notes = store.now.notes;
    if (by('notes').childElementCount !== notes.length || [...by('notes').children].some((item, n) => item.textContent !== notes[n])) {
      by('notes').replaceChildren(...notes.map(note => element('li', note)));
    }
  }

  tiles(store) {
    const { now, outlook } = store;
    tile('tile-health', now.health.word, [...now.health.because, `metadata: ${members(now.metadata)}`].join('; '), { raw: now.health.word, bad: now.health.word === 'critical' });
    const room = now.room;
    tile('tile-room', room ? `${count(100 * room.used_bytes / Math.max(1, room.capacity_bytes))} %` : 'unknown', room ? `${bytes(room.used_bytes)} of ${bytes(room.capacity_bytes)} on ${count(room.servers)} servers` : 'no server has been heard yet', { raw: room?.used_bytes, share: room ? room.used_bytes / Math.max(1, room.capacity_bytes) : 0 });
    const s = now.served;
    tile('tile-served', `${count(s.reads_per_second + s.writes_per_second)}/s`, `${count(s.reads_per_second)} reads/s of ${bytes(s.read_bytes_per_second)}/s, ${count(s.writes_per_second)} writes/s of ${bytes(s.written_bytes_per_second)}/s, at the chunk servers`, { raw: s.reads_per_second + s.writes_per_second });
    const { modelled_watts: used, always_on_modelled_watts: all, oracle_modelled_watts: least } = now.power ?? {};
    tile('tile-power', watts(used), used == null ? 'no leader adds it up' : `of ${watts(all)} with all awake, ${share(used / all)}; an oracle ${watts(least)}`, { raw: used, share: used / all });
    tile('tile-servers', `${now.gear.servers_awake} of ${now.servers}`, gear(now), { raw: now.gear.servers_awake });
    const forecast = now.gear.forecast == null ? 'no forecast yet' : `forecast of this hour ${decimal(now.gear.forecast)}`;
    tile('tile-load', decimal(now.gear.load), `servers' worth of work on ${now.gear.servers_awake} awake; ${forecast}`, { raw: now.gear.load, share: now.gear.load / Math.max(1, now.gear.servers_awake) });
    const next = nextDecision(now, outlook);
    tile('tile-next', next.when, next.what);
    const g = now.groups;
    const bad = [[g.without_primary, 'not served'], [g.not_served - g.without_primary, 'not served in full'], [g.without_target, 'refuse writes'], [g.at_risk, 'at risk'], [g.sharing_rack, 'share a rack']].filter(([n]) => n > 0).map(([n, what]) => `${count(n)} ${what}`);
    tile('tile-groups', bad[0] ?? 'all served', [...bad.slice(1), `${count(g.in_sync)} of ${count(g.total)} in sync`, `${count(g.away)} with a replica away`, `${count(g.catching_up)} catching up`].join(', '), { raw: g.in_sync, bad: g.not_served + g.without_target + g.at_risk > 0 });
    tile('tile-debt', bytes(now.debt_bytes), now.debts.length === 0 ? 'no server holds any' : `held by ${count(now.debts.length)} servers, ${age(now, Math.min(...now.debts.map(([, , since]) => since ?? Infinity)))}`, { raw: now.debt_bytes });
    tile('tile-latency', ...latency(now.latency));
    tile('tile-cycles', ...cycles(store));
    const e = now.energy;
    tile('tile-energy', e ? joules(e.modelled_joules) : 'unknown', e ? `in ${span(e.span_millis)}, since this leader began` : 'no leader adds it up', { raw: e?.modelled_joules });
  }

  /// Beside the model, and never added to it.
  async measure() {
    by('measure').disabled = true;
    say(by('measured'), 'Asking the management controllers …');
    try {
      const m = await measure();
      const error = m.model_error_percent == null ? '' : `: the model is ${decimal(m.model_error_percent)} % off`;
      say(by('measured'), m.watts == null ? 'No controller gave a reading; ebb status --measured says why.' : `Measured at ${clock(Date.now())}: ${watts(m.watts)} by the controllers of ${m.servers} of ${m.of} servers; modelled for the same ${watts(m.modelled_watts)}${error}.`);
    } catch (error) {
      say(by('measured'), error.message);
    }
    by('measure').disabled = false;
  }

  legend(now) {
    const counts = tally(now.letters);
    const shown = Object.keys(STATES).filter(name => counts[name] || 'ADSWF'.includes(name));
    const text = JSON.stringify(counts);
    if (this.legendText === text) return;
    this.legendText = text;
    by('legend').replaceChildren(...shown.map(name => {
      const item = element('li');
      item.append(letter(name), ` ${STATES[name]} ${count(counts[name] ?? 0)}`);
      return item;
    }));
  }

  debts(now) {
    const most = now.debts.slice().sort((a, b) => b[1] - a[1]).slice(0, HOLDERS_SHOWN);
    by('debts-none').hidden = most.length > 0;
    by('debts').replaceChildren(...most.map(([id, size, since]) => {
      const item = element('li');
      const bar = element('div', undefined, 'bar');
      const fill = element('i');
      fill.style.width = `${(size / most[0][1]) * 100}%`;
      bar.append(fill);
      item.append(element('span', `server ${id}`), bar, element('span', bytes(size)), element('small', age(now, since)));
      return item;
    }));
  }

  pools(pools) {
    by('pools').hidden = pools.length === 0;
    by('pools').querySelector('tbody').replaceChildren(...pools.map(pool => {
      const row = element('tr');
      const fullest = pool.fullest == null ? 'not heard yet' : `${count(pool.fullest * 100)} %`;
      row.append(element('td', pool.name), element('td', pool.code), element('td', `${count(pool.servers_awake)} of ${count(pool.servers)}`), element('td', `${count(pool.hibernating)} of ${count(pool.sets)}`), element('td', bytes(pool.parity_debt_bytes)), element('td', fullest));
      return row;
    }));
  }

  showHours(outlook) {
    if (this.outlook === outlook && this.hours.plot) return this.hours.mark();
    this.outlook = outlook;
    const rows = new Map();
    for (const hour of outlook.hours) rows.set(hour.hour, [hour.servers_awake, hour.peak_load, hour.forecast ?? null, null, null]);
    for (const hour of outlook.plan) if (!rows.has(hour.hour)) rows.set(hour.hour, [hour.awake.length, null, hour.forecast ?? null, hour.band?.high ?? null, hour.band?.low ?? null]);
    const numbers = [...rows.keys()].sort((a, b) => a - b);
    by('hours-none').hidden = numbers.length > 0;
    by('chart-hours').hidden = numbers.length === 0;
    if (numbers.length === 0) return;
    const columns = [0, 1, 2, 3, 4].map(n => numbers.map(hour => rows.get(hour)[n]));
    this.hours.show([numbers.map(hour => (outlook.schedule.hour_zero_unix_millis + hour * outlook.schedule.hour_millis) / 1000), ...columns]);
  }
}

/// `1 leads, 2 votes, 3 not heard for 20 s`
function members(all) {
  const stands = m => (m.heard_millis >= 5000 ? `not heard for ${span(m.heard_millis)}` : m.leads ? 'leads' : m.votes ? 'votes' : m.learns ? 'learns' : 'has not joined');
  return all.map(m => `${m.id} ${stands(m)}`).join(', ');
}

/// With a gap wherever two times are further apart than `most` seconds.
export function part(columns, most) {
  const [at] = columns;
  const parted = columns.map(() => []);
  at.forEach((seconds, n) => {
    if (n > 0 && seconds - at[n - 1] > most) parted.forEach((column, k) => column.push(k === 0 ? seconds - 0.001 : null));
    parted.forEach((column, k) => column.push(columns[k][n]));
  });
  return parted;
}

/// Servers that wake draw more than those that work.
function share(of) {
  const percent = Math.round((1 - of) * 100);
  return percent < 0 ? `${-percent} % more` : `${percent} % less`;
}

/// The leader knows since when a server is away, not when the first byte was kept for it.
const age = (now, since) => (Number.isFinite(since) ? `for at most ${span(now.at_unix_millis - since)}` : 'since when is unknown');

/// Value, text and options of a tile. The slower of reads and writes counts.
function latency(of) {
  if (!of) return ['unknown', 'the leader listens for 15 s first'];
  const kinds = [['reads', of.reads], ['writes', of.writes]].filter(([, figures]) => figures);
  if (kinds.length === 0) return ['no request', `in ${span(of.span_millis)}, at the chunk servers`];
  const slowest = Math.max(...kinds.map(([, figures]) => figures.p99_millis));
  const text = kinds.map(([kind, f]) => `${kind} ${millis(f.p50_millis)} and ${millis(f.p99_millis)} (${count(f.count)})`).join(', ');
  return [millis(slowest), `50 and 99 % within: ${text}, at the chunk servers in ${span(of.span_millis)}`, { raw: slowest }];
}

/// Of all servers together: the budget is an average of them.
function cycles({ now, facts, outlook }) {
  const { schedule, cycles_before: before } = outlook;
  const spent = now.power_cycles - (before?.[1] ?? 0);
  const day = schedule ? schedule.hour_millis * schedule.hours_per_day : 86_400_000;
  const since = before ? `in ${span(now.at_unix_millis - before[0])}` : 'since the cluster was created';
  const days = before ? (now.at_unix_millis - before[0]) / day : 1;
  const servers = now.pools.reduce((sum, pool) => sum + pool.servers, now.servers);
  const budget = facts.cycles_per_day * servers * days;
  const a = day === 86_400_000 ? 'a day' : `in a day of ${span(day)}`;
  return [count(spent), `${since}; budget ${count(budget)}, ${facts.cycles_per_day} ${a} each`, { raw: spent, share: spent / budget }];
}

export function gear(now) {
  const g = now.gear;
  const also = [[g.shifting && !g.dry_run, 'shifting'], [g.dry_run, 'a dry run: no server is switched'], [g.emergency, 'more awake because copies are missing'], [g.short_of_room, 'more awake because awake ones fill up']];
  return [`gear ${g.gear} of ${now.replicas} wants ${g.servers}`, g.mode === 'auto' ? 'automatic' : 'set by hand', ...also.filter(([holds]) => holds).map(([, what]) => what)].join(', ');
}

function nextDecision(now, outlook) {
  if (now.gear.mode === 'manual') return { when: 'none', what: 'the gear is set by hand, until somebody changes it' };
  const wanted = outlook.plan.find(hour => hour.from_unix_millis > now.at_unix_millis && hour.awake.length !== now.gear.servers);
  if (!wanted) return { when: 'none planned', what: outlook.plan.length === 0 ? 'nothing can be planned yet; load above what is awake wakes servers at once' : 'a day ahead the plan stays as it is; load above it wakes servers at once' };
  return { when: clock(wanted.from_unix_millis), what: `in ${span(wanted.from_unix_millis - now.at_unix_millis)}: ${wanted.awake.length} servers awake instead of ${now.gear.servers}` };
}

