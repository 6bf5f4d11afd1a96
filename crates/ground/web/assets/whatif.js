// What if: the recorded hours under other settings, replayed by the program.

import { ask } from './link.js';
import { Chart } from './chart.js';
import { count, decimal, element, say } from './words.js';

const by = id => document.getElementById(id);
// Between a slider's last move and the question.
const PAUSE = 150;

/// Sliders over several orders of magnitude are logarithmic.
const SETTINGS = {
  servers: { read: value => value, show: count },
  g_min: { read: value => value, show: count },
  short_goal: { read: value => 10 ** value, write: Math.log10, show: value => `${(value * 100).toPrecision(2)} %` },
  cycles_per_day: { read: value => 10 ** value, write: Math.log10, show: value => value.toPrecision(2) },
};

const kwh = value => `${value.toLocaleString('en', { maximumFractionDigits: value < 100 ? 2 : 0 })} kWh`;

const seriesKg = kg => (kg == null ? 'the series of the file lacks some of these hours' : `${decimal(kg)} kg, by the series of the file`);

export class WhatIf {
  constructor() {
    this.form = by('wish-form');
    this.form.addEventListener('input', () => this.moved());
    this.form.addEventListener('submit', event => event.preventDefault());
    this.form.addEventListener('reset', event => {
      event.preventDefault();
      this.set(this.configured);
      this.moved();
    });
    this.chart = new Chart(by('chart-wish'), 'Servers awake, hour by hour', 'servers', [
      { label: 'load', colour: '--load', stepped: true, say: decimal },
      { label: 'awake as configured', colour: '--always', dash: [6, 4], stepped: true, say: count },
      { label: 'awake, what if', colour: '--awake-line', stepped: true, say: count },
    ]);
  }

  render(store) {
    const { outlook, now, facts } = store;
    if (!now || !outlook.schedule) return;
    this.series = facts.has_co2_series;
    this.form.elements.co2.parentElement.hidden = this.series;
    const hours = outlook.hours.length > 0 ? outlook.hours[outlook.hours.length - 1].hour : 0;
    const { g_min, short_goal } = outlook.schedule;
    const configured = { servers: now.servers, g_min, short_goal, cycles_per_day: facts.cycles_per_day };
    const key = JSON.stringify([configured, hours, outlook.hours.length]);
    if (key === this.key) return;
    [this.key, this.configured, this.hourMillis] = [key, configured, outlook.schedule.hour_millis];
    this.form.elements.servers.min = now.replicas;
    this.form.elements.servers.max = Math.max(now.replicas * 3, now.servers * 2);
    this.form.elements.g_min.max = now.replicas;
    if (!this.wished) this.set(configured);
    this.ask(true);
  }

  set(wish) {
    for (const [name, { write }] of Object.entries(SETTINGS)) this.form.elements[name].value = write ? write(wish[name]) : wish[name];
    this.wished = undefined;
    this.outputs(wish);
  }

  /// An untouched slider means what is configured, exactly.
  wish() {
    return this.wished ?? this.configured;
  }

  outputs(wish) {
    for (const [name, { show }] of Object.entries(SETTINGS)) say(this.form.elements[name].parentElement.querySelector('output'), show(wish[name]));
  }

  moved() {
    if (!this.configured) return;
    const wish = {};
    for (const [name, { read, write }] of Object.entries(SETTINGS)) {
      const slider = this.form.elements[name];
      const still = write ? Math.abs(Number(slider.value) - write(this.configured[name])) < 0.03 : Number(slider.value) === this.configured[name];
      wish[name] = still ? this.configured[name] : read(Number(slider.value));
    }
    this.wished = wish;
    this.outputs(wish);
    this.table();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(false), PAUSE);
  }

  async ask(both) {
    const number = (this.asked = (this.asked ?? 0) + 1);
    const play = wish => ask(`/api/what-if?${new URLSearchParams(wish)}`);
    try {
      if (both || !this.base) this.base = await play(this.configured);
      const played = await play(this.wish());
      if (number !== this.asked) return;
      this.played = played;
      this.fault = undefined;
    } catch (error) {
      if (number !== this.asked) return;
      this.fault = error.message;
    }
    this.table();
    if (this.played && this.base) this.draw();
  }

  table() {
    by('wish-none').hidden = !this.fault;
    say(by('wish-none'), this.fault ?? '');
    by('wish-table').hidden = !this.played || !this.base;
    if (!this.played || !this.base) return;
    say(by('wish-of'), `${count(this.played.hours)} recorded hours, after ${count(this.played.trained_hours)} of training`);
    const [price, co2] = ['price', 'co2'].map(name => Number(this.form.elements[name].value));
    const saved = r => r.always_on_modelled_kwh - r.modelled_kwh;
    const rows = [
      ['energy', r => kwh(r.modelled_kwh)],
      ['with all servers awake', r => kwh(r.always_on_modelled_kwh)],
      ['saved', r => `${kwh(saved(r))}, ${decimal((saved(r) / r.always_on_modelled_kwh) * 100)} %`],
      ['an oracle would save', r => `${decimal((1 - r.oracle_modelled_kwh / r.always_on_modelled_kwh) * 100)} %`],
      ['money saved', r => decimal(saved(r) * price)],
      ['CO₂ saved', r => (this.series ? seriesKg(r.co2_saved_kg) : `${decimal((saved(r) * co2) / 1000)} kg`)],
      ['minutes with too few awake', r => count(r.hours_short * 60)],
      ['servers awake, mean', r => decimal(r.mean_servers_awake)],
      ['power cycles per server and day', r => decimal(r.cycles_per_server_per_day)],
    ];
    by('wish-table').tBodies[0].replaceChildren(...rows.map(([name, of]) => {
      const row = element('tr');
      const head = element('th', name);
      head.scope = 'row';
      row.append(head, element('td', of(this.base)), element('td', of(this.played)));
      return row;
    }));
  }

  draw() {
    const at = this.played.loads.map((_, n) => (this.played.from_unix_millis + n * this.hourMillis) / 1000);
    this.chart.show([at, this.played.loads, this.base.servers_awake, this.played.servers_awake]);
  }
}
