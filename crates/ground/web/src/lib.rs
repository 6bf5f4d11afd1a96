//! The page of a cluster: what it does now, why each server is awake, and the buttons of an administrator, in a
//! browser.
//!
//! One process serves it, from memory. [`hub`] asks the metadata leader at most once a second, and only while a page is
//! open; every page is sent the same over one stream of server-sent events. Looking sends requests that read
//! ([`ebb_types::AdminRequest::only_asks`]), so it wakes no server and writes nothing. Acts are the requests of `ebb
//! gear`, `ebb maintenance` and `ebb lost`; they need the administrator's token, and are logged. Watts are the power
//! model's, and called so.
//!
//! Why no cookie: cookies are shared by all ports of a host, and a browser sends them unasked. The page keeps its token
//! in the memory of its tab and sends it as a header, so no other origin can act with it ([`guard`]).
//!
//! The lab is the same page for evaluations, without a cluster: [`serve_lab`] shows a [`Lab`]'s results and campaigns.
//!
//! Buckets and objects are the S3 gateway's, which the page's program asks on the browser's behalf ([`objects`]).
//!
//! The assets are in the program: plain modules, no build step, no other origin (`assets/`, `assets/VENDORED.toml`).

mod answer;
mod assets;
mod bounded;
mod frames;
mod guard;
mod history;
mod hub;
mod lab;
mod lab_routes;
mod objects;
mod routes;
mod s3;
mod source;

pub use frames::Facts;
pub use guard::{Hosts, Tokens};
pub use lab::{
    Answer, Axis, Campaign, Channel, Compared, FieldFault, Figure, Figures, Lab, LabAct, LabRefusal, LabView,
    Line, OfferedTrace, Offers, OneRun, Phase, Planned, Point, Question, Results, Sides, Which, Wish,
    WishedModes, WishedTarget, WishedTrace,
};
pub use lab_routes::serve_lab;
pub use routes::{Page, serve};
pub use s3::{S3, Sign};
pub use source::{Act, Recorded, Refusal, Replayed, Source, WhatIf};

#[cfg(test)]
mod tests;
