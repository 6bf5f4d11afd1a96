//! Power: switches that put servers to sleep and wake them, switches of disks' speeds, meters that read watts, and a model of
//! server power.
//!
//! An edge crate: it reports and obeys, and never decides which servers sleep. A missing reading is absent, never zero,
//! and a computed watt is called modelled wherever it is shown.

pub mod disk;
mod http;
mod ipmitool;
pub mod meter;
pub mod model;
mod own_machine;
mod passthrough;
mod program;
mod savings;
pub mod scales;
pub mod switch;
mod tls;

pub use meter::{Channel, Meter, MeterError, OpenMeter, Quantity, Recorder, Recording, Source};
pub use model::{
    DepthModel, Draw, EnergyMeter, ModelError, ModelledEnergy, PowerModel, RackSwitches, SleepEnergy,
    Transition,
};
pub use own_machine::{Card, OwnMachine, OwnMachineError};
pub use savings::Savings;
pub use scales::Scales;
pub use switch::{Launch, Managed, launch, remove_pid_file, running_pid, write_pid_file};
pub use switch::{PowerState, SwitchError, Switches};
