// A chart over time: uPlot in the page's colours. What is modelled is hatched. An absent value is a gap.

import uPlot from './uPlot.esm.js';
import { clock } from './words.js';

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/// Calls `sized` when the host's size changes, and `coloured` for light, dark or paper, until the function that it
/// returns is called.
export function watch(host, sized, coloured) {
  const sizes = new ResizeObserver(sized);
  sizes.observe(host);
  const life = new AbortController();
  for (const query of ['(prefers-color-scheme: dark)', 'print']) matchMedia(query).addEventListener('change', coloured, { signal: life.signal });
  return () => {
    sizes.disconnect();
    life.abort();
  };
}

function hatch(stroke) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const pen = tile.getContext('2d');
  pen.strokeStyle = stroke;
  pen.globalAlpha = 0.45;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(-2, 10);
  pen.lineTo(10, -2);
  pen.moveTo(-2, 2);
  pen.lineTo(2, -2);
  pen.moveTo(6, 10);
  pen.lineTo(10, 6);
  pen.stroke();
  return chart => chart.ctx.createPattern(tile, 'repeat');
}

const HEIGHT = 200;

/// For the longest of an axis's labels.
export const room = (_, labels) => Math.max(46, 18 + 6.5 * Math.max(0, ...(labels ?? []).map(label => String(label ?? '').length)));

const two = n => String(n).padStart(2, '0');

/// Times of day; at midnight the day.
function times(_, splits, __, ___, step) {
  return splits.map(seconds => {
    const at = new Date(seconds * 1000);
    const [hours, minutes] = [at.getHours(), at.getMinutes()];
    if (step >= 3600 && hours === 0) return at.toLocaleDateString([], { day: 'numeric', month: 'short' });
    return `${two(hours)}:${two(minutes)}${step < 60 ? `:${two(at.getSeconds())}` : ''}`;
  });
}

export class Chart {
  /// `unit`: of the values. `lines`: `{label, colour, dash, hatched, stepped, edge, say}` each; `say` makes a value a text, an `edge` is thin.
  /// `present`: the seconds of now, where the chart also has what is to come. `band`: the numbers of the upper and the
  /// lower line that it lies between.
  constructor(host, title, unit, lines, present, band) {
    Object.assign(this, { host, title, unit, lines, present, band, data: [[], ...lines.map(() => [])] });
    this.unwatch = watch(host, () => this.resize(), () => this.rebuild());
  }

  /// Nothing holds it any more.
  end() {
    this.plot?.destroy();
    this.unwatch();
  }

  options() {
    const axis = { stroke: colour('--dim'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') }, font: '11px system-ui, sans-serif', labelFont: '11px system-ui, sans-serif', labelSize: 16 };
    const line = ({ label, colour: name, dash, hatched, stepped, edge, say }) => ({
      label,
      stroke: colour(name),
      width: edge ? 0.5 : 2,
      dash,
      points: { show: stepped ? undefined : false },
      fill: hatched ? hatch(colour(name)) : undefined,
      paths: stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      value: (_, value) => (value == null ? '–' : say(value)),
      spanGaps: false,
    });
    return {
      width: Math.max(200, this.host.clientWidth),
      height: HEIGHT,
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
      series: [{ label: 'at', value: (_, at) => (at == null ? '–' : clock(at * 1000)) }, ...this.lines.map(line)],
      bands: this.band ? [{ series: this.band.map(line => line + 1), fill: `${colour(this.lines[this.band[0]].colour)}38` }] : [],
      axes: [{ ...axis, size: 30, space: 74, values: times }, { ...axis, size: room, label: this.unit }],
      cursor: { drag: { x: true, y: false } },
      padding: [8, 8, 0, 0],
      hooks: { draw: [chart => this.drawPresent(chart)], setCursor: [() => this.mark()] },
    };
  }

  /// Between what was and what is planned.
  drawPresent({ ctx, bbox, valToPos }) {
    if (!this.present) return;
    const x = Math.round(valToPos(this.present(), 'x', true));
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour('--dim');
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.textAlign = 'left';
    ctx.textBaseline = 'top';
    ctx.fillText('planned', x + 4, bbox.top);
    ctx.restore();
  }

  /// Without a cursor on it, the legend says the values of now.
  mark() {
    if (!this.plot || this.plot.cursor.idx != null) return;
    const at = this.data[0];
    let idx = at.length - 1;
    if (this.present) while (idx > 0 && at[idx] > this.present()) idx -= 1;
    this.plot.setLegend({ idx }, false);
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = undefined;
    this.show(this.data);
  }

  resize() {
    const width = this.host.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  /// Whether somebody looks at a part of what was drawn last; a double click ends that.
  isPart() {
    if (!this.plot || this.ends[0] === this.ends[1]) return false;
    const { min, max } = this.plot.scales.x;
    return min > this.ends[0] || max < this.ends[1];
  }

  /// Columns: seconds, then a value or null for each line.
  show(data) {
    this.data = data;
    if (this.host.clientWidth === 0 || data[0].length === 0) return;
    if (this.isPart()) {
      this.plot.setData(data, false);
      this.plot.redraw();
    } else if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.host);
    this.ends = [data[0][0], data[0].at(-1)];
    // For code that asks what is drawn.
    this.host.drawn = this.plot;
    this.mark();
    const newest = n => {
      const column = data[n + 1];
      for (let at = column.length - 1; at >= 0; at -= 1) if (column[at] != null) return this.lines[n].say(column[at]);
      return 'absent';
    };
    this.host.setAttribute('aria-label', `${this.title}: ${this.lines.map((line, n) => `${line.label} ${newest(n)}`).join(', ')}`);
    this.host.dataset.points = data[0].length;
  }
}
