//! Redfish: power and temperatures of the chassis as reported by a management controller.
//!
//! New controllers have `EnvironmentMetrics` and `ThermalSubsystem/ThermalMetrics`, older ones `Power` and `Thermal`;
//! the new ones are preferred, the old ones fill in what is missing. The tree is walked once, when the meter is opened;
//! a reading fetches only the pages with numbers. A chassis inside another one is part of it. Of a machine's own page
//! the chassis that hold this machine alone are read: what several share says nothing about one of them.

use super::http::{self, Http};
use super::spec::Spec;
use super::{Channel, Meter, MeterError, Opened, Quantity};
use ebb_power::Machine;
use serde_json::Value;

/// Most chassis read from one controller; further ones are ignored.
const MOST_CHASSIS: usize = 64;

struct Redfish {
    http: Http,
    origin: String,
    /// Paths of the pages with numbers.
    pages: Vec<String>,
    /// Per channel: the page, and the position of its number there.
    places: Vec<(usize, String)>,
    channels: Vec<Channel>,
}

impl Redfish {
    fn get(&self, path: &str) -> Result<Value, MeterError> {
        self.http.get(&format!("{}{path}", self.origin), None)
    }

    /// The page that `link` of `page` refers to; `None` if there is no such link, or the page does not exist.
    fn follow(&self, page: &Value, link: &str) -> Result<Option<(String, Value)>, MeterError> {
        let Some(path) = page.pointer(&format!("{link}/@odata.id")).and_then(Value::as_str) else {
            return Ok(None);
        };
        // A link to another host would send the password there.
        if !path.starts_with('/') {
            return Ok(None);
        }
        match self.get(path) {
            Ok(page) => Ok(Some((path.to_string(), page))),
            // Some controllers link to pages that they do not have.
            Err(MeterError::Http { why, .. }) if why.contains("no such page") => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn add(&mut self, page: &str, pointer: String, name: String, quantity: Quantity, sees: &str) {
        let index = self.pages.iter().position(|known| known == page).unwrap_or_else(|| {
            self.pages.push(page.to_string());
            self.pages.len() - 1
        });
        let same = |known: &Channel| known.name == name || known.name.starts_with(&format!("{name} #"));
        let before = self.channels.iter().filter(|known| same(known)).count();
        let name = if before == 0 { name } else { format!("{name} #{}", before + 1) };
        self.channels.push(Channel::measured(name, quantity, sees));
        self.places.push((index, pointer));
    }

    fn add_chassis(&mut self, chassis: &Value) -> Result<(), MeterError> {
        let id = chassis["Id"].as_str().unwrap_or("chassis").to_string();
        let sees = "the chassis at its power supplies' inputs";
        let environment = self.follow(chassis, "/EnvironmentMetrics")?;
        let watts = environment.as_ref().and_then(|(_, page)| page.pointer("/PowerWatts/Reading"));
        if let (Some((path, _)), Some(_)) = (&environment, watts) {
            self.add(path, "/PowerWatts/Reading".into(), format!("{id}/power"), Quantity::Power, sees);
        } else if let Some((path, page)) = self.follow(chassis, "/Power")? {
            let controls = page["PowerControl"].as_array().map_or(0, Vec::len);
            for index in 0..controls {
                let pointer = format!("/PowerControl/{index}/PowerConsumedWatts");
                self.add(&path, pointer, format!("{id}/power"), Quantity::Power, sees);
                // The first is the chassis, the others are parts of it.
                if index > 0
                    && let Some(part) = self.channels.last_mut()
                {
                    part.part_of = Some(format!("{id}/power"));
                }
            }
        }
        self.add_temperatures(chassis, &id, environment)
    }

    fn add_temperatures(
        &mut self,
        chassis: &Value,
        id: &str,
        environment: Option<(String, Value)>,
    ) -> Result<(), MeterError> {
        let before = self.channels.len();
        if let Some((_, subsystem)) = self.follow(chassis, "/ThermalSubsystem")?
            && let Some((path, page)) = self.follow(&subsystem, "/ThermalMetrics")?
        {
            self.add_list(&path, &page, "TemperatureReadingsCelsius", "Reading", "DeviceName", id);
            let summary = page["TemperatureSummaryCelsius"].as_object();
            for place in
                summary.into_iter().flatten().filter(|(_, v)| v.get("Reading").is_some()).map(|(k, _)| k)
            {
                let pointer = format!("/TemperatureSummaryCelsius/{place}/Reading");
                self.add_temperature(&path, pointer, format!("{id}/{place}"), "of the chassis");
            }
        }
        if let Some((path, page)) = &environment
            && page.pointer("/TemperatureCelsius/Reading").is_some()
        {
            let (pointer, name) = ("/TemperatureCelsius/Reading".into(), format!("{id}/temperature"));
            self.add_temperature(path, pointer, name, "of the chassis");
        }
        if self.channels.len() == before
            && let Some((path, page)) = self.follow(chassis, "/Thermal")?
        {
            self.add_list(&path, &page, "Temperatures", "ReadingCelsius", "Name", id);
        }
        Ok(())
    }

    fn add_temperature(&mut self, page: &str, pointer: String, name: String, sees: &str) {
        self.add(page, pointer, name, Quantity::Temperature, sees);
    }

    fn add_list(&mut self, path: &str, page: &Value, list: &str, field: &str, name: &str, id: &str) {
        for (index, sensor) in page[list].as_array().into_iter().flatten().enumerate() {
            let label = sensor[name].as_str().map_or_else(|| format!("temperature {index}"), str::to_string);
            let pointer = format!("/{list}/{index}/{field}");
            self.add_temperature(path, pointer, format!("{id}/{label}"), "a sensor of the chassis");
        }
    }

    /// For a chassis inside another one that also has watts: those include it.
    fn mark_contained(&mut self, chassis: &[(String, Value)]) {
        for (_, page) in chassis {
            let outer = page.pointer("/Links/ContainedBy/@odata.id").and_then(Value::as_str);
            let outer = chassis.iter().find(|(path, _)| Some(path.as_str()) == outer);
            let power = |page: &Value| format!("{}/power", page["Id"].as_str().unwrap_or("chassis"));
            let Some(outer) = outer.map(|(_, page)| power(page)) else { continue };
            let inner = power(page);
            if inner != outer && self.channels.iter().any(|channel| channel.name == outer) {
                for channel in self.channels.iter_mut().filter(|c| c.name == inner) {
                    channel.part_of = Some(outer.clone());
                }
            }
        }
    }
}

/// The chassis that a machine's page links to and that hold no other machine.
fn of_machine(meter: &Redfish, machine: &Value, spec: &Spec) -> Result<Vec<(String, Value)>, MeterError> {
    let links = machine.pointer("/Links/Chassis").and_then(Value::as_array);
    let mut chassis = Vec::new();
    for link in links.into_iter().flatten().take(MOST_CHASSIS) {
        chassis.extend(meter.follow(link, "")?);
    }
    let machines = |page: &Value| page.pointer("/Links/ComputerSystems")?.as_array().map(Vec::len);
    chassis.retain(|(_, page)| machines(page) == Some(1));
    if chassis.is_empty() {
        return Err(spec.unavailable(
            "the controller knows no chassis that holds this machine alone",
            "name the machine's chassis, /redfish/v1/Chassis/ID, if one of them is",
        ));
    }
    Ok(chassis)
}

pub(super) fn open(_: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let url = http::parse(&spec.needed("the controller: https://USER@HOST")?, spec)?;
    let http = Http::open(&url, spec)?;
    let mut meter = Redfish {
        http,
        origin: url.origin.clone(),
        pages: Vec::new(),
        places: Vec::new(),
        channels: Vec::new(),
    };
    let path = url.path.trim_end_matches('/');
    let mut chassis = Vec::new();
    if path.is_empty() || path == "/redfish" || path == "/redfish/v1" || path == "/redfish/v1/Chassis" {
        let list = meter.get("/redfish/v1/Chassis")?;
        for member in list["Members"].as_array().into_iter().flatten().take(MOST_CHASSIS) {
            chassis.extend(meter.follow(member, "")?);
        }
    } else {
        let page = meter.get(path)?;
        match path.starts_with("/redfish/v1/Systems/") {
            true => chassis = of_machine(&meter, &page, spec)?,
            false => chassis.push((path.to_string(), page)),
        }
    }
    for (_, page) in &chassis {
        meter.add_chassis(page)?;
    }
    meter.mark_contained(&chassis);
    if meter.channels.is_empty() {
        return Err(spec.unavailable(
            format!("{} chassis, and none of them shows power or temperatures", chassis.len()),
            "try `ipmi`, or update the controller's firmware",
        ));
    }
    Ok((meter.channels.clone(), Box::new(meter)))
}

impl Meter for Redfish {
    fn read(&mut self, _: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        let pages: Vec<Value> = self.pages.iter().map(|path| self.get(path)).collect::<Result<_, _>>()?;
        let reading = |(page, pointer): &(usize, String)| pages[*page].pointer(pointer)?.as_f64();
        Ok(self.places.iter().map(reading).collect())
    }
}
