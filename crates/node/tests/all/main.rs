//! The end-to-end tests, one program: a test is a module, and linking once is enough. Clusters of processes take turns ([`harness`]).

mod amnesia;
mod bad_input;
mod chaos;
mod docs;
mod eval;
mod example;
mod failures;
mod harness;
mod house;
mod planned_shifts;
mod replay;
mod s3_clients;
mod security;
mod three_meta;
mod trace;
