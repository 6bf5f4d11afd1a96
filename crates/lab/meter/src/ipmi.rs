//! IPMI: the power reading of DCMI, through the program `ipmitool`.
//!
//! The options `level` and `cipher` are ipmitool's -L and -C: older controllers need `cipher=3`. Not every controller
//! supports DCMI; the option `sensors` reads the controller's own sensors instead, in watts and °C.

use super::command::{failed, leading_number};
use super::spec::Spec;
use super::{Channel, Meter, MeterError, Opened, Quantity};
use ebb_power::Machine;
use ebb_power::ipmitool::{Ipmitool, over_lan};
use std::time::{Duration, Instant};

/// For this long the answer by which a meter was opened is its first reading: some controllers crash if they are asked
/// in quick succession.
const FRESH: Duration = Duration::from_secs(1);
const DCMI: &[&str] = &["dcmi", "power", "reading"];
const INSTANTANEOUS: &str = "Instantaneous power reading";

struct Ipmi {
    target: Ipmitool,
    way: Way,
    channels: Vec<Channel>,
    /// When it was opened, and what the controller said then; until the first reading.
    opened: Option<(Instant, Vec<Option<f64>>)>,
    /// Why it said nothing then.
    why: Option<String>,
}

#[derive(Clone, Copy)]
enum Way {
    Dcmi,
    Sensors,
}

/// Asks the controller.
fn ask(target: &Ipmitool, words: &[&str]) -> Result<String, MeterError> {
    let all: Vec<&str> = target.arguments.iter().map(String::as_str).chain(words.iter().copied()).collect();
    target.run(words).map_err(|error| failed(&format!("{} {}", target.program, all.join(" ")), error))
}

fn target(spec: &mut Spec) -> Result<Ipmitool, MeterError> {
    let timeout = spec.duration("timeout")?.unwrap_or(Duration::from_secs(20));
    let password = spec.password()?;
    let program = spec.value("program")?.unwrap_or_else(|| "ipmitool".to_string());
    let Some(address) = spec.address() else {
        return Ok(Ipmitool { program, arguments: Vec::new(), password: None, timeout });
    };
    let (user, host) = match address.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, address),
    };
    if user.is_some_and(|user| user.contains(':')) {
        return Err(
            spec.wrong("the password does not belong on the command line: use the option password-file")
        );
    }
    let mut arguments = over_lan(host, user, password.is_some())
        .ok_or_else(|| spec.wrong("after the colon belongs the controller's host"))?;
    for (option, flag) in [("level", "-L"), ("cipher", "-C")] {
        arguments.extend(spec.value(option)?.into_iter().flat_map(|value| [flag.to_string(), value]));
    }
    Ok(Ipmitool { program, arguments, password, timeout })
}

/// The present watts of `dcmi power reading`; `None`: the controller measures nothing now.
fn dcmi_watts(output: &str) -> Option<f64> {
    let field = |name: &str| {
        output.lines().find_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix(':'))
    };
    if field("Power reading state is").is_some_and(|state| !state.trim().starts_with("activated")) {
        return None;
    }
    leading_number(field(INSTANTANEOUS)?)
}

/// Why an answer has no watts.
fn why_no_watts(output: &str) -> String {
    let state = output.lines().map(str::trim).find(|line| line.starts_with("Power reading state is"));
    let words = state.unwrap_or(output.trim()).split_whitespace().collect::<Vec<_>>().join(" ");
    format!("`ipmitool {}` said {words:?}: switch power measurement on in the controller", DCMI.join(" "))
}

/// Lines of `sdr list full` as comma-separated values: name, value, unit, status.
fn sensors(output: &str) -> Vec<(String, Quantity, Option<f64>)> {
    let sensor = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        let (name, value, unit) = (fields.next()?, fields.next()?, fields.next()?);
        let quantity = match unit {
            "Watts" => Quantity::Power,
            "degrees C" => Quantity::Temperature,
            _ => return None,
        };
        Some((name.to_string(), quantity, value.parse().ok()))
    };
    output.lines().filter_map(sensor).collect()
}

fn listed(target: &Ipmitool) -> Result<Vec<(String, Quantity, Option<f64>)>, MeterError> {
    ask(target, &["-c", "sdr", "list", "full"]).map(|output| sensors(&output))
}

pub(super) fn open(_: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let target = target(spec)?;
    let way = if spec.flag("sensors")? { Way::Sensors } else { Way::Dcmi };
    let unavailable = |error: MeterError| {
        let remedy = match &error {
            MeterError::Command { why, .. } if why.contains("could not be started") => "install ipmitool",
            _ if spec.address().is_none() => {
                "on a machine with a management controller load the modules ipmi_si and ipmi_devintf, and run as root"
            }
            _ => {
                "check host, user and password (option password-file), and that IPMI over LAN is allowed; where the \
                 controller has no DCMI use the option sensors, or Redfish"
            }
        };
        spec.unavailable(error.to_string(), remedy)
    };
    let mut why = None;
    let (channels, readings): (Vec<Channel>, Vec<Option<f64>>) = match way {
        Way::Dcmi => {
            let answer = ask(&target, DCMI).map_err(unavailable)?;
            if !answer.contains(INSTANTANEOUS) {
                return Err(unavailable(MeterError::Command {
                    command: "ipmitool dcmi power reading".into(),
                    why: format!("it said {:?}", answer.trim()),
                }));
            }
            let sees = "the whole machine at its power supplies' inputs";
            let watts = dcmi_watts(&answer);
            why = watts.is_none().then(|| why_no_watts(&answer));
            (vec![Channel::measured("power", Quantity::Power, sees)], vec![watts])
        }
        Way::Sensors => listed(&target)
            .map_err(unavailable)?
            .into_iter()
            .map(|(name, quantity, value)| {
                (Channel::measured(name, quantity, "a sensor of the management controller"), value)
            })
            .unzip(),
    };
    if channels.is_empty() {
        return Err(spec.unavailable(
            "the controller has no sensor in watts or °C",
            "leave the option sensors away, or use Redfish",
        ));
    }
    let opened = Some((Instant::now(), readings));
    Ok((channels.clone(), Box::new(Ipmi { target, way, channels, opened, why })))
}

impl Meter for Ipmi {
    fn read(&mut self, absent: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        if let Some((at, readings)) = self.opened.take()
            && at.elapsed() < FRESH
        {
            *absent = self.why.take();
            return Ok(readings);
        }
        match self.way {
            Way::Dcmi => {
                let answer = ask(&self.target, DCMI)?;
                let watts = dcmi_watts(&answer);
                *absent = watts.is_none().then(|| why_no_watts(&answer));
                Ok(vec![watts])
            }
            Way::Sensors => {
                let now = listed(&self.target)?;
                let reading = |channel: &Channel| now.iter().find(|(name, ..)| *name == channel.name)?.2;
                Ok(self.channels.iter().map(reading).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_answers_are_read() {
        let dcmi = b"    Instantaneous power reading:   214 Watts\n    Power reading state is: activated\n";
        ebb_testing::fuzz(&[dcmi, b"CPU Temp,41,degrees C,ok\nSys Power,168,Watts,ok\n"], |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let _ = (dcmi_watts(&text), sensors(&text));
        });
    }

    #[test]
    fn the_answer_of_ipmitool_is_understood() {
        let answer = |watts: &str, state: &str| {
            format!(
                "\n    Instantaneous power reading:                   {watts} Watts\n    Minimum during sampling period:                 \
                 19 Watts\n    IPMI timestamp:                           Thu Jan  1 00:00:00 1970\n    Sampling period:  \
                 00000001 Seconds.\n    Power reading state is:                   {state}\n\n"
            )
        };
        assert_eq!(dcmi_watts(&answer("214", "activated")), Some(214.0));
        assert_eq!(dcmi_watts(&answer("0", "deactivated")), None);
        let why = why_no_watts(&answer("0", "deactivated"));
        assert!(why.contains("\"Power reading state is: deactivated\""), "{why}");
        assert_eq!(dcmi_watts("DCMI request failed"), None);
    }

    #[test]
    fn sensors_without_a_reading_are_absent() {
        let output = "CPU Temp,41,degrees C,ok\nPwr Consumption,168,Watts,ok\nFan 1,5200,RPM,ok\nInlet,,degrees C,ns\nbad\n";
        let expected = [
            ("CPU Temp".to_string(), Quantity::Temperature, Some(41.0)),
            ("Pwr Consumption".to_string(), Quantity::Power, Some(168.0)),
            ("Inlet".to_string(), Quantity::Temperature, None),
        ];
        assert_eq!(sensors(output), expected);
    }
}
