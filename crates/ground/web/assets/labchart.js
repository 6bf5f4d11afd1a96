// A chart of figures as the program gave them: uPlot over any axis. An absent value is a gap, and a spread is a band.

import uPlot from './uPlot.esm.js';
import { colour, room, watch } from './chart.js';
import { askText } from './link.js';
import { element } from './words.js';

const HEIGHT = 230;
const COLOURS = 8;

export function short(value) {
  if (value == null) return '–';
  const size = Math.abs(value);
  const digits = size === 0 || size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : Math.min(6, 2 - Math.floor(Math.log10(size)));
  const text = value.toLocaleString('en', { maximumFractionDigits: digits });
  return text === '-0' ? '0' : text;
}

/// Columns for uPlot: all x, then a column for each line. `undefined`: the line has no point there, and is drawn on;
/// `null`: a gap.
export function columns(figure) {
  const at = [...new Set(figure.lines.flatMap(line => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const places = new Map(at.map((x, n) => [x, n]));
  return [at, ...figure.lines.map(line => {
    const column = new Array(at.length).fill(undefined);
    for (const [x, y] of line.points) column[places.get(x)] = y;
    return column;
  })];
}

export class FigureChart {
  constructor(host) {
    this.host = host;
    host.className = 'chart';
    host.setAttribute('role', 'img');
    this.unwatch = watch(host, () => this.resize(), () => this.draw());
  }

  /// Nothing holds it any more.
  end() {
    this.plot?.destroy();
    this.unwatch();
  }

  options({ x, y, lines }) {
    const axis = { stroke: colour('--dim'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') }, font: '11px system-ui, sans-serif', labelFont: '11px system-ui, sans-serif', labelSize: 16 };
    const name = value => (x.names.length > 0 ? (x.names[value] ?? '') : short(value));
    let hue = -1;
    const series = lines.map((line, n) => {
      if (!line.bound) hue += 1;
      const stroke = colour(`--c${hue % COLOURS}`);
      const modelled = /modelled|stated/.test(y.label);
      return { label: line.name, stroke, width: line.bound ? 1 : 2, dash: line.bound ? [2, 4] : line.name === 'proportional' || modelled ? [6, 4] : undefined, points: { show: !line.bound, size: 6, fill: stroke }, value: (_, value) => short(value) };
    });
    // Two bounds behind a line: least and most.
    const bands = lines.flatMap((line, n) => (line.bound && lines[n + 1]?.bound && !lines[n - 1].bound ? [{ series: [n + 2, n + 1], fill: `${series[n - 1].stroke}33` }] : []));
    const low = y.log ? undefined : (_, least, most) => [Math.min(0, least ?? 0), most > 0 ? most * 1.08 : 1];
    return {
      width: Math.max(200, this.host.clientWidth),
      height: HEIGHT,
      scales: { x: { time: false, distr: x.log ? 3 : 1, range: x.names.length > 0 ? [-0.3, x.names.length - 0.7] : undefined }, y: { distr: y.log ? 3 : 1, range: low } },
      series: [{ label: x.label, value: (_, value) => (value == null ? '–' : name(value)) }, ...series],
      bands,
      axes: [
        { ...axis, label: x.label, size: 28, space: 56, values: (_, splits) => splits.map(value => (value == null ? '' : name(value))), ...(x.names.length > 0 ? { splits: () => x.names.map((_, n) => n) } : {}) },
        { ...axis, label: y.label, size: room, values: (_, splits) => splits.map(value => (value == null ? '' : short(value))) },
      ],
      cursor: { drag: { x: true, y: false } },
      padding: [8, 12, 0, 0],
    };
  }

  resize() {
    const width = this.host.clientWidth;
    if (width === 0 || !this.figure) return;
    if (!this.plot) this.draw();
    else if (width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  show(figure) {
    // The same again would take away what somebody looks at.
    const text = JSON.stringify(figure);
    if (text === this.text) return;
    Object.assign(this, { figure, text });
    this.draw();
  }

  draw() {
    const { figure } = this;
    if (!figure) return;
    const values = figure.lines.map(line => `${line.name} ${line.points.map(([x, y]) => `${figure.x.names[x] ?? short(x)}: ${y == null ? 'not measured' : short(y)}`).join(', ')}`);
    this.host.setAttribute('aria-label', `${figure.title}. ${figure.x.label}, ${figure.y.label}. ${values.slice(0, 12).join('; ')}`);
    this.plot?.destroy();
    this.plot = undefined;
    if (this.host.clientWidth === 0) return;
    this.plot = new uPlot(this.options(figure), columns(figure), this.host);
    // For code that asks what is drawn.
    this.host.drawn = this.plot;
    this.host.dataset.points = figure.lines.reduce((sum, line) => sum + line.points.filter(([, y]) => y != null).length, 0);
  }
}

/// Hands an answer of the program to the browser as a file.
export async function saved(name, kind, path, failed) {
  try {
    save(name, kind, await askText(path));
  } catch (error) {
    failed(`${name} is not saved: ${error.message}`);
  }
}

function save(name, kind, text) {
  const link = element('a');
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/// Charts of a list of figures in `host`, each with a button for its SVG, which `path` names by its place.
/// `failed(why)`: it was not saved.
export class Charts {
  constructor(host, failed) {
    Object.assign(this, { host, failed });
    this.charts = [];
  }

  show(figures, path) {
    while (this.charts.length > figures.length) {
      const { figure, chart } = this.charts.pop();
      figure.remove();
      chart.end();
    }
    figures.forEach((figure, n) => {
      this.charts[n] ??= this.add(n);
      const { title, chart } = this.charts[n];
      title.textContent = figure.title;
      this.charts[n].path = path(n);
      chart.show(figure);
    });
  }

  add(n) {
    const figure = element('figure');
    const caption = element('figcaption');
    const title = element('h2');
    const button = element('button', 'SVG');
    button.type = 'button';
    button.setAttribute('aria-label', `Save chart ${n + 1} as SVG`);
    button.addEventListener('click', () => saved(`chart-${n + 1}.svg`, 'image/svg+xml', this.charts[n].path, this.failed));
    const host = element('div');
    caption.append(title, button);
    figure.append(caption, host);
    this.host.append(figure);
    return { figure, title, chart: new FigureChart(host) };
  }
}
