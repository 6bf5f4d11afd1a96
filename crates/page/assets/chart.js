// A chart over time: uPlot in the page's colours. What is modelled is hatched. An absent value is a gap.

import uPlot from './uPlot.esm.js';

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

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

export class Chart {
  /// `lines`: `{label, colour, dash, hatched, stepped, say}` each; `say` makes a value a text.
  constructor(host, title, lines) {
    Object.assign(this, { host, title, lines, data: [[], ...lines.map(() => [])] });
    new ResizeObserver(() => this.resize()).observe(host);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.rebuild());
    addEventListener('beforeprint', () => this.rebuild());
    addEventListener('afterprint', () => this.rebuild());
  }

  options() {
    const axis = { stroke: colour('--dim'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') }, font: '11px system-ui, sans-serif' };
    const line = ({ label, colour: name, dash, hatched, stepped, say }) => ({
      label,
      stroke: colour(name),
      width: 2,
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
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, 1e-9) * 1.08] } },
      series: [{ label: 'at', value: '{HH}:{mm}:{ss}' }, ...this.lines.map(line)],
      axes: [axis, { ...axis, size: 54 }],
      cursor: { drag: { x: true, y: false } },
      legend: { live: true },
    };
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

  /// Columns: seconds, then a value or null for each line.
  show(data) {
    this.data = data;
    if (this.host.clientWidth === 0 || data[0].length === 0) return;
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.host);
    const last = n => {
      const column = data[n + 1];
      for (let at = column.length - 1; at >= 0; at -= 1) if (column[at] != null) return this.lines[n].say(column[at]);
      return 'absent';
    };
    this.host.setAttribute('aria-label', `${this.title}: ${this.lines.map((line, n) => `${line.label} ${last(n)}`).join(', ')}`);
    this.host.dataset.points = data[0].length;
  }
}
