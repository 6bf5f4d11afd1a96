//! Tests of whole files: damaged, real, and read by the tools that they are for. `memory.rs` is a program of its own: its allocator
//! counts what every test of a process takes.

mod damage;
mod load;
mod samples;
mod tools;
