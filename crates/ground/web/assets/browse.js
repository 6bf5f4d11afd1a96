// Browse: buckets and objects as S3 has them, volumes and pools. The page's program asks S3 with a key of its own.

import { ask, request } from './link.js';
import { bytes, clock, count, element, say } from './words.js';

const by = id => document.getElementById(id);
// As the program has it; a browser can neither resume nor check what it sends.
const UPLOAD_MOST = 64 * 2 ** 20;
// A download goes through the browser's memory.
const DOWNLOAD_MOST = 256 * 2 ** 20;

const xml = async path => new DOMParser().parseFromString(await (await request(path)).text(), 'application/xml');
const parts = (node, name) => [...node.getElementsByTagName(name)];
const text = (node, name) => node.getElementsByTagName(name)[0]?.textContent ?? '';
const place = (bucket, prefix) => `#browse/${encodeURIComponent(bucket)}${prefix ? `/${encodeURIComponent(prefix)}` : ''}`;
const object = (bucket, key) => `/api/s3/object?${new URLSearchParams({ bucket, key })}`;
const quoted = name => (/^[\w./:-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`);

/// Anybody may write an address.
function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function link(name, href) {
  const made = element('a', name);
  made.href = href;
  return made;
}

function button(name, label, press) {
  const made = element('button', name);
  made.type = 'button';
  made.setAttribute('aria-label', label);
  made.addEventListener('click', press);
  return made;
}

export class Browse {
  /// `confirm` asks a person, and runs what was confirmed.
  constructor(confirm) {
    this.confirm = confirm;
    by('prefix-form').addEventListener('submit', event => {
      event.preventDefault();
      const before = location.hash;
      location.hash = place(this.bucket, by('prefix').value);
      if (location.hash === before) this.list();
    });
    by('upload').addEventListener('submit', event => {
      event.preventDefault();
      this.chosen([...by('files').files]);
    });
    by('objects-more').addEventListener('click', () => this.list(this.next));
  }

  render(store) {
    this.may = store.rights.act;
    document.querySelectorAll('#upload :is(button, input)').forEach(control => (control.disabled = !this.may));
    by('upload-looks').hidden = this.may;
    this.pools(store.now?.pools ?? []);
    if (this.hash === location.hash) return;
    this.hash = location.hash;
    const [bucket, prefix = ''] = location.hash.split('/').slice(1).map(plain);
    // What is listed is of another place.
    if (bucket !== this.bucket || prefix !== this.prefix) this.show([], '');
    Object.assign(this, { bucket, prefix });
    this.result('');
    this.buckets();
    this.volumes();
    by('objects-card').hidden = !this.bucket;
    if (!this.bucket) return;
    by('prefix').value = this.prefix;
    this.crumbs();
    this.list();
  }

  /// Another view is shown: on return the list is loaded again.
  leave() {
    this.hash = undefined;
  }

  async buckets() {
    try {
      const names = parts(await xml('/api/s3/buckets'), 'Bucket').map(bucket => text(bucket, 'Name'));
      by('buckets-none').hidden = names.length > 0;
      say(by('buckets-none'), 'There is no bucket that this key may see. An S3 client makes one: aws s3 mb s3://NAME');
      by('buckets').replaceChildren(...names.map(name => {
        const item = element('li');
        const made = link(name, place(name));
        if (name === this.bucket) made.setAttribute('aria-current', 'true');
        item.append(made);
        return item;
      }));
    } catch (error) {
      by('buckets').replaceChildren();
      by('buckets-none').hidden = false;
      say(by('buckets-none'), error.message);
    }
  }

  /// The bucket, and each folder of the prefix.
  crumbs() {
    const folders = this.prefix.split('/').slice(0, -1);
    const steps = folders.map((name, n) => link(`${name}/`, place(this.bucket, `${folders.slice(0, n + 1).join('/')}/`)));
    by('crumbs').replaceChildren(link(this.bucket, place(this.bucket)), ...steps.flatMap(step => [' ', step]));
  }

  /// From the start, or more from where the last list ended.
  async list(after) {
    const { bucket, prefix } = this;
    const query = new URLSearchParams({ bucket, prefix, ...(after && { after }) });
    const number = (this.lists = (this.lists ?? 0) + 1);
    by('objects-more').disabled = true;
    try {
      const found = await xml(`/api/s3/objects?${query}`);
      if (number !== this.lists) return;
      const folders = parts(found, 'CommonPrefixes').map(folder => this.folder(bucket, text(folder, 'Prefix')));
      const rows = folders.concat(parts(found, 'Contents').map(each => this.object(bucket, text(each, 'Key'), Number(text(each, 'Size')), text(each, 'LastModified'))));
      this.next = text(found, 'NextContinuationToken');
      this.show(after ? [...by('objects').tBodies[0].rows, ...rows] : rows, 'No object begins with that.', this.next);
    } catch (error) {
      if (number === this.lists) this.show([], error.message);
    }
  }

  show(rows, none, next) {
    by('objects').tBodies[0].replaceChildren(...rows);
    by('objects-more').hidden = !next;
    by('objects-more').disabled = false;
    by('objects-none').hidden = rows.length > 0;
    say(by('objects-none'), none);
  }

  folder(bucket, prefix) {
    const row = element('tr');
    const name = element('td', undefined, 'wrap');
    name.append(link(prefix.slice(this.prefix.length), place(bucket, prefix)));
    row.append(name, element('td'), element('td'), element('td'));
    return row;
  }

  object(bucket, key, size, changed) {
    const row = element('tr');
    const acts = element('td');
    const remove = button('Delete', `Delete ${key}`, () => this.remove(bucket, key));
    remove.disabled = !this.may;
    acts.append(button('Download', `Download ${key}`, () => this.download(bucket, key, size)), ' ', remove);
    row.append(element('td', key.slice(this.prefix.length) || key, 'wrap'), element('td', bytes(size)), element('td', changed ? clock(Date.parse(changed)) : ''), acts);
    return row;
  }

  async download(bucket, key, size) {
    const at = `s3://${bucket}/${key}`;
    if (size > DOWNLOAD_MOST) return this.result(`${key} has ${bytes(size)}: use an S3 client, such as aws s3 cp ${quoted(at)} .`, true);
    try {
      this.result(`Downloading ${key} …`);
      const url = URL.createObjectURL(await (await request(object(bucket, key))).blob());
      const save = element('a');
      save.href = url;
      save.download = key.split('/').filter(Boolean).pop() ?? 'object';
      save.click();
      URL.revokeObjectURL(url);
      this.result(`Downloaded ${key}.`);
    } catch (error) {
      this.result(`${key}: ${error.message}`, true);
    }
  }

  chosen(files) {
    if (files.length === 0) return this.result('Choose a file first.', true);
    const long = files.find(file => file.size > UPLOAD_MOST);
    if (long) return this.result(`${long.name} has ${bytes(long.size)}, and a browser uploads at most ${bytes(UPLOAD_MOST)}: use an S3 client, such as aws s3 cp.`, true);
    const { bucket, prefix } = this;
    const what = files.length === 1 ? files[0].name : `${count(files.length)} files`;
    this.confirm({
      title: `Upload ${what}?`,
      what: `To ${bucket}/${prefix}. An object of the same name is replaced.`,
      command: files.map(file => `aws s3 cp ${quoted(file.name)} ${quoted(`s3://${bucket}/${prefix}${file.name}`)}`).join(' && '),
      run: () => this.upload(bucket, prefix, files),
    });
  }

  async upload(bucket, prefix, files) {
    for (const file of files) {
      this.result(`Uploading ${file.name} …`);
      try {
        await request(object(bucket, prefix + file.name), { method: 'PUT', body: file });
      } catch (error) {
        return this.result(`${file.name}: ${error.message}`, true);
      }
    }
    by('upload').reset();
    this.result(`Uploaded ${files.map(file => file.name).join(', ')}.`);
    this.list();
  }

  remove(bucket, key) {
    this.confirm({
      title: `Delete ${key}?`,
      what: `From ${bucket}. This cannot be undone.`,
      command: `aws s3 rm ${quoted(`s3://${bucket}/${key}`)}`,
      run: async () => {
        try {
          await request(object(bucket, key), { method: 'DELETE' });
          this.result(`Deleted ${key}.`);
          this.list();
        } catch (error) {
          this.result(`${key}: ${error.message}`, true);
        }
      },
    });
  }

  async volumes() {
    try {
      const all = await ask('/api/volumes');
      by('volumes-none').hidden = all.length > 0;
      say(by('volumes-none'), 'There is none. The command line makes one: ebb volume create --size 20GiB NAME');
      by('volumes').hidden = all.length === 0;
      by('volumes').tBodies[0].replaceChildren(...all.map(volume => {
        const row = element('tr');
        const inPool = volume.pool ? `${bytes(volume.moved_bytes)} in ${volume.pool}` : 'none';
        const here = volume.front_max_bytes == null ? 'everything' : `at most ${bytes(volume.front_max_bytes)}`;
        for (const cell of [volume.name, bytes(volume.size_bytes), inPool, here, volume.in_use ? 'in use' : 'not in use', clock(volume.created_millis)]) row.append(element('td', cell));
        return row;
      }));
    } catch (error) {
      by('volumes').hidden = true;
      by('volumes-none').hidden = false;
      say(by('volumes-none'), error.message);
    }
  }

  pools(pools) {
    const key = JSON.stringify(pools);
    if (this.poolsShown === key) return;
    this.poolsShown = key;
    by('browse-pools').hidden = pools.length === 0;
    by('browse-pools-none').hidden = pools.length > 0;
    by('browse-pools').tBodies[0].replaceChildren(...pools.map(pool => {
      const row = element('tr');
      const known = value => (value == null ? 'not heard yet' : bytes(value));
      for (const cell of [pool.name, pool.code, `${count(pool.sets)}, ${count(pool.hibernating)} asleep`, known(pool.data_bytes), known(pool.stored_bytes), `${count(pool.servers_awake)} of ${count(pool.servers)}`]) row.append(element('td', cell));
      return row;
    }));
  }

  result(said, bad = false) {
    by('browse-result').classList.toggle('bad', bad);
    say(by('browse-result'), said);
  }
}
