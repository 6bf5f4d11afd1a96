//! Tests of whole files: damaged, real, and read by the target tools. `memory.rs` is a separate program: its allocator
//! counts the memory of every test in a process.

mod damage;
mod load;
mod samples;
mod tools;
