//! What stands in for the laboratory and the simulators in a build without them: it says how to get them.

const ABSENT: &str =
    "this program was built without the laboratory and the simulators; `make build` builds it with them";

pub mod lab {
    use crate::error::NodeError;
    use clap::Subcommand;
    use std::ffi::OsString;
    use std::process::ExitCode;

    pub const EXAMPLES: &str = "Not in this program; `make build` builds it with them.";

    #[derive(Subcommand)]
    pub enum LabCommand {
        #[command(external_subcommand)]
        Any(#[expect(dead_code, reason = "whatever it is, it is not here")] Vec<OsString>),
    }

    impl LabCommand {
        pub fn keeps_data(&self) -> bool {
            false
        }

        pub fn serves(&self) -> bool {
            false
        }
    }

    pub async fn run(_: LabCommand) -> Result<ExitCode, NodeError> {
        Err(NodeError::Refused(super::ABSENT.into()))
    }
}

pub mod series {
    use crate::error::NodeError;
    use clap::Args;
    use ebb_types::Schedule;
    use std::path::{Path, PathBuf};

    #[derive(Args)]
    pub struct SeriesArgs {
        /// Not in this program: `make build` builds it with it
        #[arg(long, value_name = "FILE")]
        pub series: Option<PathBuf>,
    }

    impl SeriesArgs {
        pub fn peaks(&self, _: &Path, _: &Schedule, _: u32) -> Result<Vec<(u64, f64)>, NodeError> {
            Err(NodeError::Refused(super::ABSENT.into()))
        }
    }
}

pub mod simulate {
    use crate::error::NodeError;
    use clap::Args;
    use std::ffi::OsString;
    use std::process::ExitCode;

    #[derive(Args)]
    pub struct SimulateArgs {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        any: Vec<OsString>,
    }

    pub async fn run(_: SimulateArgs) -> Result<ExitCode, NodeError> {
        Err(NodeError::Refused(super::ABSENT.into()))
    }
}

pub mod what_if {
    use crate::cli::co2::Co2;
    use ebb_power::PowerModel;
    use ebb_web::{Recorded, Replayed, WhatIf};

    pub fn replay(_: &Recorded, _: &PowerModel, _: Option<&Co2>, _: WhatIf) -> Result<Replayed, String> {
        Err(super::ABSENT.into())
    }
}
