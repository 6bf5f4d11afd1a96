//! The first phase: options, until one of them opens an export.

use crate::export::Export;
use crate::output::{CloseReason, Output, Step};
use crate::terms::Terms;
use crate::wire::{self, OPTION_HEADER_BYTES};
use bytes::{Buf, BufMut, BytesMut};

/// Longest data of an option, in bytes: many times the longest name.
const OPTION_MAX: u32 = 64 << 10;
/// No client needs as many.
const OPTIONS_MAX: u32 = 1000;
/// How much of a name that is not known is shown, in characters.
const SHOWN: usize = 256;

#[derive(Default)]
pub(crate) struct Negotiation {
    /// Absent until the client has sent its flags.
    flags: Option<u16>,
    options: u32,
    structured: bool,
    /// The export for which `base:allocation` was selected.
    context: Option<usize>,
}

/// A refused option: the kind of the reply, and a text for people.
type Refused = (u32, String);

impl Negotiation {
    /// Takes one message.
    pub fn step(&mut self, exports: &[Export], input: &mut BytesMut, out: &mut Vec<Output>) -> Step {
        let Some(flags) = self.flags else { return self.client_flags(input) };
        let Some((mut header, rest)) =
            input.split_first_chunk::<OPTION_HEADER_BYTES>().map(|(h, r)| (&h[..], r))
        else {
            return Step::Missing(OPTION_HEADER_BYTES);
        };
        if header.get_u64() != wire::OPTION {
            return Step::Close(CloseReason::NotAnOption);
        }
        let (option, length) = (header.get_u32(), header.get_u32());
        if length > OPTION_MAX {
            return Step::Close(CloseReason::OptionTooLong { option, length });
        }
        if self.options == OPTIONS_MAX {
            return Step::Close(CloseReason::TooManyOptions);
        }
        let length = length as usize;
        if rest.len() < length {
            return Step::Missing(OPTION_HEADER_BYTES + length);
        }
        self.options += 1;
        input.advance(OPTION_HEADER_BYTES);
        let data = input.split_to(length);
        match option {
            wire::OPT_EXPORT_NAME => self.export_name(exports, &data, flags, out),
            _ => self.option(exports, option, &data, out),
        }
    }

    fn client_flags(&mut self, input: &mut BytesMut) -> Step {
        if input.len() < 4 {
            return Step::Missing(4);
        }
        let flags = input.get_u32();
        if flags & !u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES) != 0 {
            return Step::Close(CloseReason::ClientFlags(flags));
        }
        self.flags = Some(flags as u16);
        Step::Done
    }

    /// The old way to open an export: it has no way to refuse.
    fn export_name(&self, exports: &[Export], name: &[u8], flags: u16, out: &mut Vec<Output>) -> Step {
        let Some(export) = find(exports, name) else {
            return Step::Close(CloseReason::NoSuchExport(shown(name)));
        };
        let mut reply = BytesMut::with_capacity(134);
        reply.put_u64(exports[export].size);
        reply.put_u16(exports[export].flags(self.structured));
        if flags & wire::NO_ZEROES == 0 {
            reply.put_bytes(0, 124);
        }
        out.push(Output::Send(reply.freeze()));
        self.open(export)
    }

    fn open(&self, export: usize) -> Step {
        let status = self.context == Some(export);
        Step::Opened(Terms { export, structured: self.structured, status })
    }

    /// Every other option: some replies, of which the last one is an acknowledgement or an error.
    fn option(&mut self, exports: &[Export], option: u32, data: &[u8], out: &mut Vec<Output>) -> Step {
        let mut send = |kind, data: &[u8]| out.push(Output::Send(wire::option_reply(option, kind, data)));
        let outcome = match option {
            wire::OPT_ABORT => Ok(Step::Close(CloseReason::Aborted)),
            wire::OPT_LIST => list(exports, data, &mut send),
            wire::OPT_INFO => self.info(exports, data, &mut send).map(|_| Step::Done),
            wire::OPT_GO => self.info(exports, data, &mut send).map(|export| self.open(export)),
            wire::OPT_STRUCTURED_REPLY => self.structured_reply(data),
            wire::OPT_LIST_META_CONTEXT => self.list_contexts(exports, data, &mut send),
            wire::OPT_SET_META_CONTEXT => self.set_contexts(exports, data, &mut send),
            _ => Err((wire::REP_ERR_UNSUP, "this server does not have the option".to_owned())),
        };
        match outcome {
            Ok(step) => {
                send(wire::REP_ACK, &[]);
                step
            }
            Err((kind, text)) => {
                send(kind, text.as_bytes());
                Step::Done
            }
        }
    }

    /// Describes an export; returns its place.
    fn info(
        &self,
        exports: &[Export],
        data: &[u8],
        send: &mut impl FnMut(u32, &[u8]),
    ) -> Result<usize, Refused> {
        let (name, asked) = parse_info(data).ok_or_else(malformed)?;
        let index = find(exports, name).ok_or_else(|| unknown(name))?;
        let export = &exports[index];
        let mut one = |kind: u16, put: &dyn Fn(&mut BytesMut)| {
            let mut info = BytesMut::new();
            info.put_u16(kind);
            put(&mut info);
            send(wire::REP_INFO, &info);
        };
        one(wire::INFO_EXPORT, &|info| {
            info.put_u64(export.size);
            info.put_u16(export.flags(self.structured));
        });
        // Unasked, too: a client that understands it had better keep to it.
        one(wire::INFO_BLOCK_SIZE, &|info| {
            info.put_u32(export.block.minimum);
            info.put_u32(export.block.preferred);
            info.put_u32(export.block.maximum);
        });
        let is_asked = |kind: u16| asked.chunks_exact(2).any(|asked| asked == kind.to_be_bytes());
        if is_asked(wire::INFO_NAME) {
            one(wire::INFO_NAME, &|info| info.put_slice(export.name.as_bytes()));
        }
        if is_asked(wire::INFO_DESCRIPTION) {
            one(wire::INFO_DESCRIPTION, &|info| info.put_slice(export.description.as_bytes()));
        }
        Ok(index)
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<Step, Refused> {
        if !data.is_empty() {
            return Err(malformed());
        }
        self.structured = true;
        Ok(Step::Done)
    }

    fn list_contexts(
        &self,
        exports: &[Export],
        data: &[u8],
        send: &mut impl FnMut(u32, &[u8]),
    ) -> Result<Step, Refused> {
        let (_, queries) = self.contexts(exports, data)?;
        let is_match = |query: &&[u8]| *query == wire::CONTEXT || *query == wire::CONTEXT_NAMESPACE;
        if queries.is_empty() || queries.iter().any(is_match) {
            send_context(0, send);
        }
        Ok(Step::Done)
    }

    fn set_contexts(
        &mut self,
        exports: &[Export],
        data: &[u8],
        send: &mut impl FnMut(u32, &[u8]),
    ) -> Result<Step, Refused> {
        // What was selected before is gone even if this fails.
        self.context = None;
        let (export, queries) = self.contexts(exports, data)?;
        if queries.contains(&wire::CONTEXT) {
            self.context = Some(export);
            send_context(wire::CONTEXT_ID, send);
        }
        Ok(Step::Done)
    }

    /// The export and the queries of an option about contexts.
    fn contexts<'a>(&self, exports: &[Export], data: &'a [u8]) -> Result<(usize, Vec<&'a [u8]>), Refused> {
        if !self.structured {
            let text = "structured replies must be negotiated before contexts";
            return Err((wire::REP_ERR_INVALID, text.to_owned()));
        }
        let (name, queries) = parse_contexts(data).ok_or_else(malformed)?;
        Ok((find(exports, name).ok_or_else(|| unknown(name))?, queries))
    }
}

fn list(exports: &[Export], data: &[u8], send: &mut impl FnMut(u32, &[u8])) -> Result<Step, Refused> {
    if !data.is_empty() {
        return Err(malformed());
    }
    for export in exports {
        let mut entry = BytesMut::new();
        entry.put_u32(u32::try_from(export.name.len()).expect("names are short"));
        entry.put_slice(export.name.as_bytes());
        entry.put_slice(export.description.as_bytes());
        send(wire::REP_SERVER, &entry);
    }
    Ok(Step::Done)
}

fn send_context(id: u32, send: &mut impl FnMut(u32, &[u8])) {
    send(wire::REP_META_CONTEXT, &[&id.to_be_bytes(), wire::CONTEXT].concat());
}

/// The empty name stands for the first export.
fn find(exports: &[Export], name: &[u8]) -> Option<usize> {
    match name {
        [] if !exports.is_empty() => Some(0),
        _ => exports.iter().position(|export| export.name.as_bytes() == name),
    }
}

/// Name, and kinds of information as they came.
fn parse_info(mut data: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = wire::take_text(&mut data)?;
    let kinds = wire::take_u16(&mut data)?;
    (data.len() == 2 * usize::from(kinds)).then_some((name, data))
}

/// Name and queries.
fn parse_contexts(mut data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let name = wire::take_text(&mut data)?;
    let count = wire::take_u32(&mut data)?;
    // The count is the client's claim: the list grows with what is there.
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(wire::take_text(&mut data)?);
    }
    data.is_empty().then_some((name, queries))
}

fn malformed() -> Refused {
    (wire::REP_ERR_INVALID, "the option's data is malformed".to_owned())
}

fn unknown(name: &[u8]) -> Refused {
    (
        wire::REP_ERR_UNKNOWN,
        format!("there is no export {}: list the exports to see their names", shown(name)),
    )
}

/// A client's name for an export, in quotes and safe to print.
fn shown(name: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(name).chars().take(SHOWN).collect();
    format!("{text:?}")
}
