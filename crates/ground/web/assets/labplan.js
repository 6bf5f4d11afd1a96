// Configure: a matrix, what it would run and for how long; start, pause, resume and delete campaigns. Each act asks
// first.

import { Refused, act, ask } from './link.js';
import { Confirmation } from './confirm.js';
import { bytes, count, element, say, span } from './words.js';
import { short } from './labchart.js';

const by = id => document.getElementById(id);
// Between a key and the question.
const PAUSE = 300;

const STATES = { planned: 'planned', running: 'running', unfinished: 'paused', done: 'done', results_only: 'results only' };

/// The field of a form that a fault is about: `target.size_mib` of the second target is named `target.1.size_mib`.
function fieldOf(form, { key, place }) {
  const [table, name] = key.split('.');
  const named = form.elements.namedItem(key) ?? form.elements.namedItem(`${table}.${place}.${name}`);
  return named instanceof RadioNodeList ? named[0] : named;
}

export function clearFaults(form) {
  form.querySelectorAll('[aria-invalid]').forEach(field => field.removeAttribute('aria-invalid'));
  form.querySelectorAll('.fault').forEach(note => note.remove());
}

/// Says what is wrong beside the field; in front of the form where it has no such field.
export function showFault(form, fault) {
  const field = fieldOf(form, fault);
  const text = field ? fault.problem : `${fault.key}: ${fault.problem}`;
  // What was said is not said again.
  const before = form.querySelector('.fault');
  if (before?.textContent === text && before.parentElement.contains(field ?? before)) return;
  clearFaults(form);
  const note = element('span', text, 'fault');
  note.id = `fault-${form.id}`;
  note.setAttribute('role', 'alert');
  if (field) {
    field.setAttribute('aria-invalid', 'true');
    field.setAttribute('aria-describedby', note.id);
    (field.closest('label') ?? field.parentElement).append(note);
  } else form.prepend(note);
}

/// A number where the text is one; other texts go to the program, which says what is wrong with them.
const value = text => (text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text.trim());
const list = text => text.split(/[,;]/).map(part => part.trim()).filter(part => part !== '').map(value);

/// Of today, and of no other campaign.
function freeName(campaigns) {
  const today = `lab-${new Date().toISOString().slice(0, 10)}`;
  for (let n = 1; ; n += 1) {
    const name = n === 1 ? today : `${today}-${n}`;
    if (!campaigns.some(campaign => campaign.name === name)) return name;
  }
}

export class Plan {
  constructor() {
    this.form = by('matrix');
    this.form.addEventListener('input', () => this.soon());
    this.form.addEventListener('submit', event => event.preventDefault());
    by('keep').addEventListener('click', () => this.keep(false));
    by('keep-start').addEventListener('click', () => this.keep(true));
    this.confirmation = new Confirmation(by('confirm-name'), asked => this.confirmed(asked));
  }

  render(store) {
    this.store = store;
    by('plan-looks').hidden = store.rights.act;
    this.buttons();
    this.campaigns(store);
    if (!this.offered) {
      this.offered = true;
      this.form.elements.name.value = freeName(store.campaigns);
      this.offer().catch(error => {
        this.offered = false;
        this.result(error.message, true);
      });
    }
  }

  /// Without a target there is nothing to keep.
  buttons() {
    const chosen = (this.targets ?? []).some((_, n) => this.form.elements[`use.${n}`].checked);
    for (const id of ['keep', 'keep-start']) by(id).disabled = !this.store.rights.act || !chosen;
    return chosen;
  }

  campaigns({ campaigns, rights }) {
    const key = JSON.stringify([campaigns, rights]);
    if (key === this.shown) return;
    this.shown = key;
    by('campaigns-none').hidden = campaigns.length > 0;
    const focused = document.activeElement?.dataset.act;
    by('campaigns').tBodies[0].replaceChildren(...campaigns.map(campaign => this.row(campaign, rights.act)));
    if (focused) by('campaigns').querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
  }

  row(campaign, may) {
    const row = element('tr');
    const { name, phase, done, failed, total, seconds_left: left, said, targets } = campaign;
    const head = element('th', name);
    head.scope = 'row';
    const state = element('td', said ? `${STATES[phase]}: ${said}` : STATES[phase], said ? 'wrap' : undefined);
    state.dataset.phase = phase;
    const runs = `${count(done)}${total == null ? '' : ` of ${count(total)}`}${failed > 0 ? `, ${failed} failed` : ''}`;
    const cells = [element('td', runs), element('td', left == null || phase === 'done' ? '–' : span(left * 1000)), element('td', targets.join(', '))];
    const buttons = element('div', undefined, 'buttons');
    if (phase === 'running') buttons.append(this.button('pause', 'Pause', campaign, may));
    else {
      if (campaign.command && phase !== 'done') buttons.append(this.button('start', phase === 'unfinished' ? 'Resume' : 'Start', campaign, may));
      buttons.append(this.button('delete', 'Delete', campaign, may));
    }
    const acts = element('td');
    acts.append(buttons);
    row.append(head, state, acts, ...cells);
    return row;
  }

  button(kind, text, campaign, may) {
    const button = element('button', text, kind === 'delete' ? 'danger' : undefined);
    button.type = 'button';
    button.disabled = !may;
    button.dataset.act = `${kind} ${campaign.name}`;
    button.setAttribute('aria-label', `${text} ${campaign.name}`);
    button.addEventListener('click', () => this.confirm(kind, campaign));
    return button;
  }

  /// `burns`: names of targets whose data may be destroyed, as far as this page knows.
  confirm(kind, { name, command, done }, burns = []) {
    const file = this.store.results.file;
    const asked = {
      start: { title: `Start ${name}?`, what: `It writes to its targets. A target that holds data is refused, unless its matrix says overwrite = true${burns.length > 0 ? `: of ${burns.join(', ')} it does` : ''}.`, command },
      pause: { title: `Pause ${name}?`, what: 'The run in progress is lost and repeated later; everything that has a result is kept.', command: 'Ctrl-C; the same command resumes it' },
      delete: { title: `Delete ${name}?`, what: `Its matrix and its ${count(done)} results are removed. Traces and targets stay. This cannot be undone.`, command: `ebb lab eval delete ${name} --db ${file}`, type: name },
    }[kind];
    this.confirmation.ask({ ...asked, act: { [kind]: { campaign: name } } });
  }

  async confirmed(asked) {
    try {
      await act(asked.act);
      this.result(asked.title.replace('?', ': done.'));
    } catch (error) {
      this.result(error.message, true);
    }
  }

  result(text, bad = false) {
    by('plan-result').classList.toggle('bad', bad);
    say(by('plan-result'), text);
  }

  async offer() {
    const offers = await ask('/api/offers');
    by('targets-none').hidden = offers.targets.length > 0;
    this.targets = [];
    by('targets').replaceChildren(...offers.targets.map((at, n) => this.target(at, n, offers.meters)));
    by('traces-none').hidden = offers.traces.length > 0;
    say(by('traces-none'), offers.traces_note ?? 'There is none.');
    by('traces').hidden = offers.traces.length === 0;
    by('traces').tBodies[0].replaceChildren(...offers.traces.map((trace, n) => this.trace(trace, n)));
    this.ask();
  }

  target(at, n, meters) {
    const box = element('div', undefined, 'target');
    const check = (name, text, checked) => {
      const label = element('label', undefined, 'check');
      const input = element('input');
      Object.assign(input, { type: 'checkbox', name, checked });
      label.append(input, text);
      return label;
    };
    const use = check(`use.${n}`, at, n === 0);
    use.dataset.at = at;
    const fields = element('div', undefined, 'fields');
    const field = (key, text, initial) => {
      const label = element('label', text);
      const input = element('input');
      Object.assign(input, { name: `target.${n}.${key}`, value: initial, autocomplete: 'off' });
      label.append(input);
      return label;
    };
    const plain = at.split(/[:/]/).at(-1).replace(/[^\w.-]/g, '-').replace(/\.[a-z]+$/, '') || 'target';
    fields.append(field('name', 'Name', plain));
    // Devices have their own size.
    if (!at.startsWith('/')) fields.append(field('size_mib', 'Size, MiB', '1024'));
    fields.append(check(`target.${n}.overwrite`, 'Data on it may be destroyed (overwrite = true)', false));
    meters.forEach((meter, m) => fields.append(check(`meter.${n}.${m}`, meter, true)));
    box.append(use, fields);
    this.targets.push({ at, meters });
    return box;
  }

  trace(trace, n) {
    const row = element('tr');
    const head = element('th');
    head.scope = 'row';
    const label = element('label', undefined, 'check');
    const input = element('input');
    Object.assign(input, { type: 'checkbox', name: `trace.${n}.file`, value: trace.file });
    label.append(input, trace.file);
    head.append(label);
    const share = part => (part == null ? '–' : `${short(100 * part)} %`);
    const cells = [count(trace.requests), trace.span_seconds < 120 ? `${short(trace.span_seconds)} s` : span(trace.span_seconds * 1000), short(trace.requests_per_second), share(trace.read_share), share(trace.random_share), trace.mean_size_bytes == null ? '–' : bytes(trace.mean_size_bytes), short(trace.peak_to_mean)];
    row.append(head, ...cells.map(text => element('td', text)));
    return row;
  }

  /// The matrix as the form has it. Empty fields are left out.
  wish() {
    const { elements } = this.form;
    const wish = { name: elements.name.value.trim() };
    const procedure = elements.procedure.value;
    const plain = ['settle_seconds', 'idle_seconds', 'run_seconds'];
    if (procedure) wish.procedure = procedure;
    else for (const key of plain) if (elements[key].value.trim() !== '') wish[key] = value(elements[key].value);
    if (procedure !== 'emerald' && elements.repetitions.value.trim() !== '') wish.repetitions = value(elements.repetitions.value);
    if (!procedure) wish.levels = list(elements.levels.value);
    wish.filter = elements.filter.value;
    const modes = {};
    for (const key of ['sizes', 'random', 'reads']) modes[key] = list(elements[`synthetic.${key}`].value);
    // Without any size there are no modes; a half-filled form is a mistake, which is said.
    if (procedure !== 'emerald' && Object.values(modes).some(values => values.length > 0)) wish.synthetic = modes;
    const traces = [...this.form.querySelectorAll('#traces input:checked')];
    if (procedure !== 'emerald') wish.trace = traces.map(({ value: file }) => ({ name: file.split('/').at(-1).replace(/[^\w.-]/g, '-').slice(0, 64), file }));
    wish.target = [];
    this.places = [];
    (this.targets ?? []).forEach(({ at, meters }, n) => {
      if (!elements[`use.${n}`].checked) return;
      const size = elements[`target.${n}.size_mib`];
      this.places.push(n);
      wish.target.push({
        name: elements[`target.${n}.name`].value.trim(), at,
        ...(size && size.value.trim() !== '' ? { size_mib: value(size.value) } : {}),
        overwrite: elements[`target.${n}.overwrite`].checked,
        meters: meters.filter((_, m) => elements[`meter.${n}.${m}`].checked),
      });
    });
    return wish;
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), PAUSE);
  }

  fault(error) {
    if (!(error instanceof Refused && error.code === 422)) return false;
    const fault = JSON.parse(error.message);
    // The second target of the matrix may be the third of the form.
    if (fault.key.startsWith('target.')) fault.place = this.places[fault.place] ?? fault.place;
    showFault(this.form, fault);
    return true;
  }

  /// There is no plan, and why.
  unplanned(why) {
    delete by('planned').dataset.runs;
    say(by('planned'), why);
    say(by('planned-command'), '');
    say(by('planned-text'), '');
  }

  async ask() {
    const number = (this.asks = (this.asks ?? 0) + 1);
    if (!this.buttons()) {
      clearFaults(this.form);
      this.unplanned(this.targets?.length > 0 ? 'Choose a target.' : 'Nothing: no target was offered. Start the lab with --target, such as `ebb lab serve --target file:/var/tmp/x`.');
      return;
    }
    try {
      const planned = await ask(`/api/plan?matrix=${encodeURIComponent(JSON.stringify(this.wish()))}`);
      if (number !== this.asks) return;
      clearFaults(this.form);
      const found = planned.found > 0 ? ` ${count(planned.found)} of them have a result already.` : '';
      say(by('planned'), `${count(planned.runs)} runs, about ${span(planned.seconds * 1000)}.${found}`);
      say(by('planned-command'), planned.command);
      say(by('planned-text'), planned.text);
      by('planned').dataset.runs = planned.runs;
    } catch (error) {
      if (number !== this.asks) return;
      this.unplanned(this.fault(error) ? 'The matrix has a mistake, or is not filled in yet.' : error.message);
    }
  }

  async keep(start) {
    const matrix = this.wish();
    try {
      await act({ create: { matrix } });
      this.result(`${matrix.name} is kept.`);
      const burns = matrix.target.filter(target => target.overwrite).map(target => target.at);
      if (start) this.confirm('start', { name: matrix.name, command: by('planned-command').textContent, done: 0 }, burns);
    } catch (error) {
      if (!this.fault(error)) this.result(error.message, true);
    }
  }
}
