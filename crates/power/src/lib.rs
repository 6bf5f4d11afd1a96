//! Power: switches that put servers to sleep and wake them, meters that read watts, and a model of what
//! servers draw.
//!
//! An edge: it reports and obeys, it never decides who sleeps. A reading that is not there is absent, never
//! zero, and a watt that was computed is called modelled wherever it is shown.

pub mod meter;
pub mod model;
pub mod process;
pub mod switch;

pub use meter::{Channel, Meter, MeterError, OpenMeter, Quantity, Recorder, Recording, Source};
pub use model::{Draw, EnergyMeter, ModelError, ModelledEnergy, PowerModel, Transition};
pub use process::{
    Depth, Launch, Managed, ProcessSwitch, launch, remove_pid_file, running_pid, write_pid_file,
};
pub use switch::{PowerState, Switch, SwitchError};
