// The dialog that asks before an act, and says what the command line would be. An act that cannot be undone wants a
// word to be written.

const by = id => document.getElementById(id);

export class Confirmation {
  /// `word`: the field of that word. `confirmed` gets what was asked.
  constructor(word, confirmed) {
    this.word = word;
    word.addEventListener('input', () => this.check());
    by('confirm').addEventListener('close', () => {
      if (by('confirm').returnValue === 'yes' && !by('confirm-yes').disabled) confirmed(this.asked);
    });
  }

  /// `title`, `what`, `command`, and the word to be written as `type`, if there is one.
  ask(asked) {
    this.asked = asked;
    by('confirm-title').textContent = asked.title;
    by('confirm-what').textContent = asked.what;
    by('confirm-command').textContent = asked.command;
    by('confirm-type').hidden = asked.type === undefined;
    this.word.value = '';
    by('confirm-yes').classList.toggle('danger', asked.type !== undefined);
    by('confirm-yes').classList.toggle('primary', asked.type === undefined);
    this.check();
    by('confirm').returnValue = 'no';
    by('confirm').showModal();
  }

  check() {
    by('confirm-yes').disabled = this.asked.type !== undefined && this.word.value.trim() !== this.asked.type;
  }
}
