// Servers × time: a row each, a stretch per state, by colour and letter. Only the rows in sight are drawn, so 10,000
// scroll as well as ten.

import { colour, watch } from './chart.js';
import { STATES, clock, say } from './words.js';

const ROW = 18;
const HEAD = 20;
const GUTTER = 64;
const LETTER_LEAST = 11;
// What has been seen fills the width, but for the first minute.
const SPAN_LEAST = 60_000;

export class Strip {
  /// `chosen(id)`: somebody wants to know why.
  constructor(host, chosen) {
    Object.assign(this, { host, chosen, spacer: host.firstElementChild, canvas: host.querySelector('canvas'), servers: [], runs: [], gaps: [], cursor: -1, span: 1800, frames: 0, waits: false });
    this.pen = this.canvas.getContext('2d');
    host.addEventListener('scroll', () => this.draw(), { passive: true });
    watch(host, () => this.draw(), () => this.paint());
    this.canvas.addEventListener('click', event => this.choose(this.rowAt(event)));
    this.canvas.addEventListener('mousemove', event => this.tell(this.rowAt(event)));
    host.addEventListener('keydown', event => this.key(event));
    this.paint();
  }

  /// Replaces everything: `servers`, the strip of the stream, and of when the newest look is, if there was one.
  load(servers, strip, now) {
    this.servers = servers;
    this.from = strip.from_unix_millis;
    this.runs = Array.from(strip.base, letter => [[strip.from_unix_millis, letter]]);
    for (const [at, row, letter] of strip.changes) this.runs[row]?.push([at, letter]);
    this.gaps = strip.gaps.slice();
    this.now = now;
    this.draw();
  }

  add(at, letters) {
    // The page's program sends the unwatched times when a page opens; within one stream a hole of 5 s is one, too.
    if (this.now && at - this.now > 5000) this.gaps.push([this.now, at]);
    this.now = at;
    // No rows: the program sends all servers in a moment.
    for (let row = 0; row < letters.length; row += 1) {
      const runs = this.runs[row];
      if (runs && runs[runs.length - 1][1] !== letters[row]) runs.push([at, letters[row]]);
    }
    this.draw();
  }

  /// Since when a server is in its state; undefined: since before anybody watched.
  since(row) {
    const runs = this.runs[row];
    return runs && runs.length > 1 ? runs[runs.length - 1][0] : undefined;
  }

  paint() {
    const names = Object.keys(STATES);
    this.fills = Object.fromEntries(names.map(name => [name, [colour(`--${name}`), colour(`--on-${name}`)]]));
    this.inks = { text: colour('--text'), dim: colour('--dim'), line: colour('--line'), back: colour('--card'), accent: colour('--accent') };
    this.draw();
  }

  draw() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.frames += 1;
      this.drawNow();
    });
  }

  window() {
    const end = this.now ?? Date.now();
    const from = this.from || end;
    const begin = this.span > 0 ? Math.max(end - this.span * 1000, from) : from;
    return [Math.min(begin, end - SPAN_LEAST), end];
  }

  drawNow() {
    const width = this.host.clientWidth;
    if (width === 0) return;
    const height = Math.min(HEAD + this.servers.length * ROW, 420);
    this.spacer.style.height = `${HEAD + this.servers.length * ROW}px`;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.pen;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.inks.back;
    pen.fillRect(0, 0, width, height);
    const [begin, end] = this.window();
    const x = at => GUTTER + Math.round(Math.max(0, (at - begin) / (end - begin)) * (width - GUTTER - 4));
    const top = this.host.scrollTop;
    pen.textBaseline = 'middle';
    const first = Math.max(0, Math.floor(top / ROW));
    const last = Math.min(this.servers.length, Math.ceil((top + height) / ROW));
    for (let row = first; row < last; row += 1) this.drawRow(row, HEAD + row * ROW - top, x, begin, end);
    this.drawGaps(x, begin, end, height);
    this.drawHead(x, begin, end, width);
  }

  drawRow(row, y, x, begin, end) {
    const pen = this.pen;
    pen.font = `${row === this.cursor ? 'bold ' : ''}12px system-ui, sans-serif`;
    pen.textAlign = 'right';
    pen.fillStyle = row === this.cursor ? this.inks.accent : this.inks.dim;
    pen.fillText(`${this.servers[row].logger ? 'logger' : 'server'} ${this.servers[row].id}`, GUTTER - 6, y + ROW / 2);
    pen.textAlign = 'center';
    pen.font = 'bold 11px system-ui, sans-serif';
    const runs = this.runs[row] ?? [];
    for (let n = runs.length - 1; n >= 0; n -= 1) {
      const [at, letter] = runs[n];
      const until = runs[n + 1]?.[0] ?? end;
      if (until < begin) break;
      const left = x(at);
      const wide = Math.max(2, x(until) - left);
      const [fill, ink] = this.fills[letter] ?? [this.inks.dim, this.inks.back];
      pen.fillStyle = fill;
      pen.fillRect(left, y + 1, wide, ROW - 2);
      if (wide >= LETTER_LEAST) {
        pen.fillStyle = ink;
        pen.fillText(letter, n === runs.length - 1 ? x(end) - LETTER_LEAST / 2 - 2 : left + wide / 2, y + ROW / 2 + 0.5);
      }
    }
  }

  /// Unwatched times are empty.
  drawGaps(x, begin, end, height) {
    for (const [from, until] of this.gaps) {
      if (until < begin || from > end) continue;
      const left = x(from);
      const wide = Math.max(1, x(until) - left);
      this.pen.fillStyle = this.inks.back;
      this.pen.fillRect(left, HEAD, wide, height - HEAD);
      if (wide > 70) {
        this.pen.fillStyle = this.inks.dim;
        this.pen.textAlign = 'center';
        this.pen.font = '11px system-ui, sans-serif';
        this.pen.fillText('not watched', left + wide / 2, HEAD + ROW / 2);
      }
    }
  }

  drawHead(x, begin, end, width) {
    const pen = this.pen;
    pen.fillStyle = this.inks.back;
    pen.fillRect(0, 0, width, HEAD);
    pen.fillStyle = this.inks.dim;
    pen.strokeStyle = this.inks.line;
    pen.font = '11px system-ui, sans-serif';
    const steps = Math.max(2, Math.floor((width - GUTTER) / 130));
    for (let n = 0; n <= steps; n += 1) {
      const at = begin + ((end - begin) * n) / steps;
      pen.textAlign = n === 0 ? 'left' : n === steps ? 'right' : 'center';
      pen.fillText(new Date(at).toLocaleTimeString([], { hour12: false }), x(at), HEAD / 2);
    }
    pen.fillRect(GUTTER, HEAD - 1, width - GUTTER - 4, 0.5);
  }

  rowAt(event) {
    const y = event.clientY - this.canvas.getBoundingClientRect().top - HEAD + this.host.scrollTop;
    return Math.floor(y / ROW);
  }

  tell(row) {
    const server = this.servers[row];
    if (!server) return;
    const [at, letter] = this.runs[row][this.runs[row].length - 1];
    const since = this.since(row) === undefined ? '' : ` since ${clock(at)}`;
    say(document.getElementById('strip-says'), `Server ${server.id}, rack ${server.rack}: ${STATES[letter]}${since}`);
  }

  choose(row) {
    if (this.servers[row]) this.chosen(this.servers[row].id);
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (event.key === 'Enter') return this.choose(this.cursor);
    if (step === undefined) return;
    event.preventDefault();
    this.cursor = Math.min(this.servers.length - 1, Math.max(0, this.cursor + step));
    const y = HEAD + this.cursor * ROW;
    if (y < this.host.scrollTop + HEAD) this.host.scrollTop = y - HEAD;
    if (y + ROW > this.host.scrollTop + this.host.clientHeight) this.host.scrollTop = y + ROW - this.host.clientHeight;
    this.tell(this.cursor);
    this.draw();
  }
}
