// Query: finished runs by mode vector, load, target and time: charts, a table, exports, and two campaigns side by side.

import { Refused, ask } from './link.js';
import { Charts, saved, short } from './labchart.js';
import { clock, count, element, say } from './words.js';
import { clearFaults, showFault } from './labplan.js';

const by = id => document.getElementById(id);
// Between a key and the question.
const PAUSE = 250;
// Between two looks at results that change.
const REFRESH = 2000;
const ROWS_MOST = 200;

const percent = value => (value == null ? '–' : `${short(value)} %`);
const option = (value, text = value) => {
  const made = element('option', text);
  made.value = value;
  return made;
};

function options(select, values, all) {
  const chosen = select.value;
  const wanted = [...(all ? [option('', all)] : []), ...values.map(value => option(value))];
  if (wanted.map(o => o.value).join('\n') === [...select.options].map(o => o.value).join('\n')) return;
  select.replaceChildren(...wanted);
  if (values.includes(chosen)) select.value = chosen;
}

/// A request size as the reader of conditions takes it.
const size = value => (Number.isInteger(value) && value % 1024 === 0 ? (value % 1048576 === 0 ? `${value / 1048576}MiB` : `${value / 1024}KiB`) : String(value));

export class Query {
  constructor() {
    this.form = by('which');
    this.form.addEventListener('input', () => this.soon());
    this.form.addEventListener('submit', event => event.preventDefault());
    this.form.addEventListener('reset', () => setTimeout(() => this.ask(), 0));
    const failed = why => this.note(why);
    by('export-csv').addEventListener('click', () => saved('runs.csv', 'text/csv', `/api/runs.csv?${this.which()}`, failed));
    by('export-json').addEventListener('click', () => saved('runs.json', 'application/json', `/api/runs?${this.which()}`, failed));
    by('sides').addEventListener('submit', event => {
      event.preventDefault();
      this.compare();
    });
    by('sides').elements.workload.addEventListener('change', () => this.compare());
    this.charts = new Charts(by('figures'), failed);
    this.compared = new Charts(by('compare-figures'), why => say(by('compare-note'), why));
  }

  which() {
    const data = Object.fromEntries(new FormData(this.form));
    for (const key of ['from', 'to']) if (data[key]) data[key] = String(new Date(data[key]).getTime());
    return new URLSearchParams(data).toString();
  }

  render(store) {
    const names = store.campaigns.filter(campaign => campaign.done + campaign.failed > 0).map(campaign => campaign.name);
    const first = this.seen === undefined;
    options(this.form.elements.campaign, names, 'all');
    options(this.form.elements.target, [...new Set(store.campaigns.flatMap(campaign => campaign.targets))].sort(), 'all');
    const sides = store.campaigns.filter(campaign => campaign.done > 0).flatMap(campaign => campaign.targets.map(target => `${campaign.name}/${target}`));
    for (const side of ['a', 'b']) options(by('sides').elements[side], sides);
    if (first && sides.length > 1) by('sides').elements.b.selectedIndex = 1;
    by('compare').hidden = sides.length < 2;
    const seen = JSON.stringify([store.results.changed_unix_millis, names]);
    if (seen === this.seen) return;
    this.seen = seen;
    // Charts are of one campaign on one target: at first of the first.
    if (first && names.length > 0) {
      this.form.elements.campaign.value = names[0];
      const { targets } = store.campaigns.find(campaign => campaign.name === names[0]);
      if (targets.length > 1) this.form.elements.target.value = targets[0];
    }
    if (store.results.changed_unix_millis === null) {
      this.note(`There are no results at ${store.results.file} yet. Configure starts a campaign; so does ebb lab eval run.`);
    } else if (!store.results.trouble) this.refresh(first);
  }

  /// What a running campaign adds is shown now and then, not after each run.
  refresh(now) {
    if (now) this.ask();
    else this.later ??= setTimeout(() => {
      this.later = undefined;
      this.ask();
    }, REFRESH);
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), PAUSE);
  }

  note(text) {
    say(by('query-note'), text ?? '');
  }

  /// One question at a time: what changed meanwhile is asked next, so that every answer is shown.
  async ask() {
    this.wanted = true;
    if (this.asking) return;
    this.asking = true;
    while (this.wanted) {
      this.wanted = false;
      await this.answered(this.which());
    }
    this.asking = false;
  }

  async answered(which) {
    try {
      const [runs, figures] = await Promise.all([ask(`/api/runs?${which}`), ask(`/api/figures?${which}`)]);
      clearFaults(this.form);
      this.note(figures.note);
      this.charts.show(figures.figures, n => `/api/figures/${n}?${which}`);
      this.table(runs);
      this.proportions(figures.proportions);
      this.lists(runs);
    } catch (error) {
      if (error instanceof Refused && error.code === 422) showFault(this.form, JSON.parse(error.message));
      else this.note(error.message);
    }
  }

  /// What the fields may be filled with, from what is there.
  lists(runs) {
    const of = { workloads: run => run.workload, sizes: run => (run.request_bytes == null ? undefined : size(run.request_bytes)), randoms: run => run.random_percent, reads: run => run.read_percent, loads: run => run.load_percent };
    for (const [id, value] of Object.entries(of)) {
      const values = [...new Set(runs.map(value))].filter(value => value != null).sort((a, b) => (typeof a === 'number' ? a - b : String(a).localeCompare(b, 'en', { numeric: true })));
      by(id).replaceChildren(...values.slice(0, 200).map(value => option(String(value))));
    }
  }

  table(runs) {
    say(by('runs-of'), `${count(runs.length)} ${runs.length === 1 ? 'fits' : 'fit'}`);
    by('runs').dataset.runs = runs.length;
    say(by('runs-more'), runs.length > ROWS_MOST ? `The newest ${ROWS_MOST} of ${count(runs.length)}: narrow them down, or export all.` : '');
    by('runs').tBodies[0].replaceChildren(...runs.slice(-ROWS_MOST).reverse().map(run => this.row(run)));
  }

  row(run) {
    const row = element('tr');
    const cells = [clock(run.started_unix_millis), run.campaign, run.target, run.workload, run.load_percent === 0 ? 'idle' : percent(run.load_percent), percent(run.load_percent_iops), run.repetition];
    row.append(...cells.map(text => element('td', String(text))));
    if (run.error !== null) {
      row.className = 'failed';
      const why = element('td', `failed: ${run.error}`, 'wrap');
      why.colSpan = 9;
      row.append(why);
    } else {
      row.append(...[run.iops, run.mb_per_second, run.latency_p50_millis, run.latency_p99_millis].map(value => element('td', short(value))));
      const watts = element('td', short(run.watts));
      if (run.watts !== null && run.watts_source !== 'measured') watts.append(element('span', ` ${run.watts_source}`, 'source'));
      row.append(watts, ...[run.temperature_celsius, run.iops_per_watt, run.mb_per_second_per_kilowatt].map(value => element('td', short(value))));
      row.append(element('td', run.evidence ?? '–'));
    }
    const again = element('td');
    const button = element('button', 'how');
    button.setAttribute('aria-label', `How to repeat ${run.workload} at ${run.load_percent} % of ${run.campaign}`);
    button.addEventListener('click', () => this.again(run));
    again.append(button);
    row.append(again);
    return row;
  }

  async again({ campaign, target, workload, load_percent }) {
    let commands;
    try {
      commands = await ask(`/api/repeat?${new URLSearchParams({ campaign, target, workload, load_percent })}`);
    } catch (error) {
      return this.note(error.message);
    }
    say(by('again-title'), `${campaign}/${target}, ${workload} at ${load_percent} %: again`);
    by('again-commands').replaceChildren(...commands.map(command => {
      const item = element('li');
      item.append(element('code', command));
      return item;
    }));
    by('again').showModal();
  }

  proportions(found) {
    by('proportions').hidden = found.length === 0;
    by('proportions').querySelector('tbody').replaceChildren(...found.map(one => {
      const row = element('tr');
      const head = element('th', one.workload);
      head.scope = 'row';
      const cells = [short(one.index), short(one.idle_watts), short(one.full_watts), short(one.dynamic_range), short(one.overall_iops_per_watt), one.watts_source ?? '–'];
      row.append(head, ...cells.map(text => element('td', text)));
      return row;
    }));
  }

  async compare() {
    const form = by('sides').elements;
    const sides = new URLSearchParams({ a: form.a.value, b: form.b.value, workload: form.workload.value }).toString();
    try {
      const { comparison, workloads, figures } = await ask(`/api/compare?${sides}`);
      options(form.workload, workloads);
      const { idle_watts: idle, pairs, only_a, only_b } = comparison;
      const idles = idle ? ` Idle: A ${short(idle.a)} W, B ${short(idle.b)} W.` : ' Idle watts are not on both sides.';
      say(by('compare-note'), `${pairs.length} combinations of workload and load on both sides; only A has ${only_a}, only B ${only_b}.${idles} Bands are the spread of the repetitions.`);
      by('ratios').hidden = false;
      by('ratios').tBodies[0].replaceChildren(...comparison.overall.map(one => {
        const row = element('tr');
        const head = element('th', one.metric.replaceAll('_', ' '));
        head.scope = 'row';
        row.append(head, ...[one.ratio, one.least, one.most].map(value => element('td', value.toFixed(3))), element('td', String(one.pairs)));
        return row;
      }));
      this.compared.show(figures, n => `/api/compare/${n}?${sides}`);
    } catch (error) {
      by('ratios').hidden = true;
      this.compared.show([], () => '');
      say(by('compare-note'), error.message);
    }
  }
}
