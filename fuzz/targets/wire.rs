//! Frames and messages of every kind, snapshots, hellos and secret files.
#![no_main]

use ebb_types::frame::{HEADER_BYTES, decode_body, decode_header};
use ebb_types::{
    ClientReply, ClientRequest, InspectReply, InspectRequest, MetaPush, MetaReply, MetaRequest, PeerMessage, ServerMessage,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else { return };
    match which % 12 {
        0 => {
            if let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>()
                && let Ok(header) = decode_header(header)
            {
                let _ = decode_body::<PeerMessage>(&header, body);
            }
        }
        1 => drop(postcard::from_bytes::<PeerMessage>(bytes)),
        2 => drop(postcard::from_bytes::<ClientRequest>(bytes)),
        3 => drop(postcard::from_bytes::<ClientReply>(bytes)),
        4 => drop(postcard::from_bytes::<ServerMessage>(bytes)),
        5 => drop(postcard::from_bytes::<MetaPush>(bytes)),
        6 => drop(postcard::from_bytes::<MetaRequest>(bytes)),
        7 => drop(postcard::from_bytes::<MetaReply>(bytes)),
        8 => drop(postcard::from_bytes::<InspectRequest>(bytes)),
        9 => drop(postcard::from_bytes::<InspectReply>(bytes)),
        10 => drop(postcard::from_bytes::<Vec<ebb_meta::Command>>(bytes)),
        _ => drop(ebb_client::Secret::from_bytes(bytes)),
    }
});
