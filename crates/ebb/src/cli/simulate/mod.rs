//! `ebb simulate`: the virtual world. Every simulation runs the production decision makers on a virtual clock; its
//! output is modelled, never measured.

mod fuzz;
pub mod load;
mod mirror;
mod paper;
mod reliability;
mod seeds;
mod sleep;
mod trace;

use crate::error::NodeError;
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Args)]
pub struct SimulateArgs {
    #[command(subcommand)]
    what: Simulation,
}

#[derive(Subcommand)]
enum Simulation {
    /// Compare gear policies on a load series: what would my service save? Takes seconds
    #[command(after_help = load::EXAMPLES)]
    Load(load::LoadArgs),
    /// Run a trace on a mirror of two modelled two-speed disks: energy, response times, states over time
    #[command(after_help = mirror::EXAMPLES)]
    Mirror(mirror::MirrorArgs),
    /// Repeat a paper's evaluation, each number beside the paper's
    #[command(after_help = paper::EXAMPLES)]
    Paper(paper::PaperArgs),
    /// Mean time to data loss of erasure-coded sets, while their parity servers sleep and after
    #[command(after_help = reliability::EXAMPLES)]
    Reliability(reliability::ReliabilityArgs),
    /// Run a trace on a modelled cluster: latency, energy and traffic of every request
    #[command(after_help = trace::EXAMPLES)]
    Trace(trace::TraceArgs),
    /// Hunt for protocol bugs: random clusters, workloads, gears and faults, checked against the rules
    #[command(after_help = fuzz::EXAMPLES)]
    Fuzz(fuzz::FuzzArgs),
}

/// Runs one simulation. Simulations compute and never wait, so most need not be asynchronous.
pub async fn run(args: SimulateArgs) -> Result<ExitCode, NodeError> {
    match args.what {
        Simulation::Load(args) => load::run(&args),
        Simulation::Mirror(args) => mirror::run(&args),
        Simulation::Paper(args) => paper::run(&args),
        Simulation::Reliability(args) => reliability::run(&args),
        Simulation::Trace(args) => trace::run(&args).await,
        Simulation::Fuzz(args) => fuzz::run(&args),
    }
}
