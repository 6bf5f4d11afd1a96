// Live: the campaign that runs, or the last one, on one axis of time.

import { Chart } from './chart.js';
import { short } from './labchart.js';
import { clock, say, span } from './words.js';

const by = id => document.getElementById(id);
const COLOURS = 8;

const percent = value => `${short(value)} %`;
const SIMPLE = [
  ['chart-load', 'Load', '%', [{ label: 'configured', colour: '--always', dash: [6, 4], stepped: true, say: percent, of: p => p.load_percent }, { label: 'achieved', colour: '--load', say: percent, of: p => p.achieved_percent }]],
  ['chart-iops', 'IOPS', '1/s', [{ label: 'IOPS', colour: '--c0', say: short, of: p => p.iops }]],
  ['chart-mb', 'MB/s', 'MB/s', [{ label: 'MB/s', colour: '--c2', say: short, of: p => p.mb_per_second }]],
  ['chart-response', 'Response time', 'ms', [{ label: 'mean', colour: '--c3', say: value => `${short(value)} ms`, of: p => p.response_millis }]],
  ['chart-efficiency', 'IOPS/W', 'IOPS/W', [{ label: 'IOPS/W', colour: '--c4', say: short, of: p => (p.watts > 0 && p.iops != null ? p.iops / p.watts : null) }]],
];

export class Live {
  constructor() {
    this.charts = SIMPLE.map(([id, title, unit, lines]) => ({ chart: new Chart(by(id), title, unit, lines), lines }));
    this.channels = {};
    by('span').addEventListener('change', () => this.store && this.draw(this.store));
  }

  render(store) {
    this.store = store;
    const running = store.campaigns.find(campaign => campaign.phase === 'running');
    const tile = (id, text, more) => {
      const [value, rest] = by(id).querySelectorAll('dd');
      say(value, text);
      say(rest, more ?? '');
    };
    tile('tile-campaign', running?.name ?? 'none runs', running?.targets.join(', '));
    tile('tile-done', running ? `${running.done} of ${running.total ?? '?'}` : '–', running?.failed ? `${running.failed} failed` : '');
    by('tile-done').querySelector('i').style.width = running?.total ? `${(100 * running.done) / running.total}%` : '0';
    const left = running?.seconds_left;
    tile('tile-left', left == null ? '–' : span(left * 1000), left == null ? '' : `until ${clock(Date.now() + left * 1000)}`);
    const last = store.points.at(-1);
    tile('tile-run', running ? (last?.watts == null ? (running.present ? 'no watts' : 'starts') : `${short(last.watts)} W`) : '–', running?.present ?? '');
    by('live-none').hidden = store.points.length > 0 || running !== undefined;
    by('live-charts').hidden = by('live-span').hidden = store.points.length === 0;
    this.draw(store);
  }

  draw({ points }) {
    const length = Number(by('span').value);
    const from = length === 0 || points.length === 0 ? 0 : points.at(-1).at_unix_millis - length * 1000;
    const shown = points.filter(point => point.at_unix_millis >= from);
    // All charts have the same times.
    const at = shown.map(point => point.at_unix_millis / 1000);
    for (const { chart, lines } of this.charts) chart.show([at, ...lines.map(({ of }) => shown.map(of))]);
    this.byChannel('chart-watts', 'watts-none', 'Power', 'W', at, shown, point => point.watts);
    this.byChannel('chart-celsius', 'celsius-none', 'Temperature', '°C', at, shown);
  }

  /// A line for each channel of a unit, and one for all together.
  byChannel(id, none, title, unit, at, points, all) {
    const names = [...new Set(points.flatMap(point => point.channels.filter(channel => channel.unit === unit).map(channel => channel.name)))].sort();
    by(none).hidden = names.length > 0;
    by(id).hidden = names.length === 0;
    if (names.length === 0) return;
    const key = names.join('\n');
    if (this.channels[id]?.key !== key) {
      // Other channels: another chart, in a place of its own.
      this.channels[id]?.chart.end();
      const host = by(id).cloneNode(false);
      by(id).replaceWith(host);
      const text = value => `${short(value)} ${unit}`;
      const lines = names.map((label, n) => ({ label, colour: `--c${n % COLOURS}`, say: text, hatched: /modelled$/.test(label) }));
      if (all) lines.push({ label: 'all meters', colour: '--text', dash: [6, 4], say: text });
      this.channels[id] = { key, chart: new Chart(host, title, unit, lines) };
    }
    const of = name => point => point.channels.find(channel => channel.unit === unit && channel.name === name)?.value ?? null;
    this.channels[id].chart.show([at, ...names.map(name => points.map(of(name))), ...(all ? [points.map(all)] : [])]);
  }
}
