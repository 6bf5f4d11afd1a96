//! Placeholder.
mod gateway;

fn main() {}
