//! Power: switches that put servers to sleep and wake them, switches of disks' speeds, and a model of server power.
//! What meters and switches of one device share is here too: management controllers over HTTP and `ipmitool`, commands
//! straight to a drive.
//!
//! An edge crate: it reports and obeys, and never decides which servers sleep. A missing reading is absent, never zero,
//! and a computed watt is called modelled wherever it is shown.

pub mod disk;
pub mod http;
pub mod ipmitool;
mod machine;
pub mod model;
mod own_machine;
pub mod passthrough;
pub mod program;
mod savings;
pub mod scales;
pub mod switch;
pub mod tls;

pub use machine::Machine;
pub use model::{
    DepthModel, Draw, EnergyMeter, ModelError, ModelledEnergy, PowerModel, RackSwitches, SleepEnergy,
    Transition,
};
pub use own_machine::{Card, OwnMachine, OwnMachineError};
pub use savings::Savings;
pub use scales::Scales;
pub use switch::{Launch, Managed, launch, remove_pid_file, running_pid, write_pid_file};
pub use switch::{PowerState, SWITCH_THREADS, SwitchError, Switches};
