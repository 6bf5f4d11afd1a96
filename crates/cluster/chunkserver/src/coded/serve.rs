//! What other servers ask of the columns kept here: listings, and the content of blocks.
//!
//! Before a server answers under an epoch, it has refused everything older since, and has stored what it took before.
//! So nothing of an older epoch is acknowledged after the answer.

use super::set::CodedSet;
use crate::common::api::{StoreCommand, StoreOutcome};
use crate::common::context::Context;
use crate::common::wait::{Ask, Asked, ColumnWait, Wait};
use bytes::Bytes;
use ebb_types::{Content, ListPage, PeerMessage, RECORD_BLOCKS_MAX, Record, Refusal, ServerId, Version};

impl CodedSet {
    /// `ready`: the metadata service counts on this incarnation, and the store works.
    pub fn on_peer(
        &mut self,
        cx: &mut Context,
        from: ServerId,
        message: PeerMessage,
        payload: &Bytes,
        ready: bool,
    ) {
        match message {
            PeerMessage::List { group, epoch, token, since, after, .. } => {
                let what = Asked::List { since, after };
                self.on_ask(cx, Ask { from, group, epoch, token, what }, ready);
            }
            PeerMessage::Fetch { group, epoch, token, chunk, first, count, .. } => {
                let what = Asked::Blocks { chunk, first, count };
                self.on_ask(cx, Ask { from, group, epoch, token, what }, ready);
            }
            PeerMessage::ListReply { token, result, .. } => {
                self.fence_to_refusal(result.as_ref().err());
                self.on_scrub_listed(cx, (from, token), result.as_ref().ok().cloned());
                if let Some(fill) = &mut self.fill {
                    fill.on_list_reply(cx, (from, token), result);
                }
            }
            PeerMessage::FetchReply { token, result, .. } => {
                self.fence_to_refusal(result.as_ref().err());
                self.rebuilds.on_reply(cx, &mut self.known, (from, token), result, payload);
            }
            // Columns have no order: the messages of primaries do not concern them.
            _ => {}
        }
    }

    fn on_ask(&mut self, cx: &mut Context, ask: Ask, ready: bool) {
        let fenced = if ready { self.known.fence_to(ask.epoch) } else { Err(Refusal::NotReady) };
        let too_large = matches!(ask.what, Asked::Blocks { first, count, .. }
            if count == 0 || count > RECORD_BLOCKS_MAX || first.checked_add(count).is_none());
        let refusal = match fenced {
            Err(refusal) => Some(refusal),
            Ok(()) if too_large => Some(Refusal::Malformed),
            Ok(()) if self.asks.len() >= cx.config.waiting => Some(Refusal::NotReady),
            Ok(()) => None,
        };
        match refusal {
            Some(refusal) => answer(cx, &ask, Err(refusal)),
            None => self.asks.push(ask),
        }
        self.give_asked(cx);
    }

    /// Answers what others ask, as soon as what was taken under older epochs is stored.
    pub fn give_asked(&mut self, cx: &mut Context) {
        let ready = |ask: &mut Ask| !self.storing.values().any(|epoch| *epoch < ask.epoch);
        for ask in self.asks.extract_if(.., ready).collect::<Vec<_>>() {
            let Ask { group, what, .. } = ask;
            let role = group.column().and_then(|(_, column)| self.known.role_of(cx.me, column));
            let Some(role) = role else {
                answer(cx, &ask, Ok(nothing(&ask)));
                continue;
            };
            let command = match what {
                Asked::List { since, after } => StoreCommand::List { role, group, since, after },
                Asked::Blocks { chunk, first, count } => {
                    StoreCommand::Read { role, group, chunk, first, count }
                }
            };
            cx.store(Wait::Column(ColumnWait::For(ask)), command);
        }
    }

    /// The store answered. In a newer epoch it may have dropped what is asked for meanwhile.
    pub fn on_asked(&mut self, cx: &mut Context, ask: &Ask, outcome: StoreOutcome) {
        if let Err(stale) = self.known.fence_to(ask.epoch) {
            return answer(cx, ask, Err(stale));
        }
        let result = match outcome {
            StoreOutcome::Failed(refusal) => Err(refusal),
            StoreOutcome::Damaged { .. } => Err(Refusal::Corrupt),
            outcome => Ok(outcome),
        };
        answer(cx, ask, result);
    }
}

/// The answer for a column of which this server has nothing.
fn nothing(ask: &Ask) -> StoreOutcome {
    match ask.what {
        Asked::List { .. } => StoreOutcome::Listed(ListPage::default()),
        Asked::Blocks { chunk, first, count } => {
            let (group, version, content) = (ask.group, Version::ZERO, Content::Zero);
            let record = Record { group, chunk, first, count, version, request: None, content };
            StoreOutcome::Read { records: vec![record], payload: Bytes::new() }
        }
    }
}

fn answer(cx: &mut Context, ask: &Ask, result: Result<StoreOutcome, Refusal>) {
    let Ask { from, group, token, .. } = *ask;
    let mut bytes = Bytes::new();
    let message =
        match ask.what {
            Asked::List { .. } => {
                let page = result.map(|outcome| {
                    if let StoreOutcome::Listed(page) = outcome { page } else { ListPage::default() }
                });
                PeerMessage::ListReply { group, token, result: page }
            }
            Asked::Blocks { .. } => {
                let result = result.map(|outcome| {
                    let StoreOutcome::Read { records, payload } = outcome else { return Vec::new() };
                    bytes = payload;
                    records
                });
                PeerMessage::FetchReply { group, token, result }
            }
        };
    cx.send_with(from, message, bytes);
}
