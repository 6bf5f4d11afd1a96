//! What cannot happen.
//!
//! A decision maker that meets it reports it and continues as well as it can. A debug build stops there, and the fault
//! searches fail; a process logs it and counts it in `ebb_bugs_total`. What a wire, a disk or a client says can be
//! anything, and is none.

/// Something that cannot happen unless this program has a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug(pub &'static str);

/// Reports it among the commands of a decision maker.
#[track_caller]
pub fn bug<C: From<Bug>>(out: &mut Vec<C>, what: &'static str) {
    debug_assert!(false, "{what}");
    out.push(Bug(what).into());
}
