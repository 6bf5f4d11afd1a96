//! The end-to-end tests, in one program: each test file is a module, so linking happens once. Clusters of processes
//! take turns ([`harness`]).

mod bad_input;
mod disturb;
mod eval;
mod example;
mod failures;
mod harness;
mod lab;
mod load;
mod metrics;
mod mirror;
mod mirror_speeds;
mod mirror_tools;
mod mirrored;
mod odd_controllers;
mod own_machines;
mod page;
mod papers;
mod parted;
mod planned_shifts;
mod pools;
mod power_emulators;
mod power_lan;
mod power_vm;
mod provenance;
mod replay;
mod rescue;
mod s3_clients;
mod security;
mod space;
mod three_meta;
mod trace;
mod volumes;
