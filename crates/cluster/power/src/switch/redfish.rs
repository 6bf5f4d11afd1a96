//! Redfish: turns a machine on through its management controller.
//!
//! The reset types that a controller takes are read from it, not guessed: PushPowerButton works on some makes and is
//! missing on others, and some list types that they refuse, so the next one is tried. No session is opened, so none is
//! left behind. Sources: field notes of Ironic, badfish and metal-operator.

use super::fields::Password;
use super::{About, Clock, Driver, Fields, PowerState, Settle, SwitchError};
use crate::http::{Http, HttpError, Settings, Url};
use crate::tls::Trust;
use ebb_types::Depth;
use serde_json::{Value, json};
use std::time::Duration;

/// Reset types that turn a machine on, the gentlest first.
const ON: &[&str] = &["On", "ForceOn"];
/// It turns a machine on that is off, and another one off.
const BUTTON: &str = "PushPowerButton";
/// Most systems of a controller that an error lists.
const MOST_SYSTEMS: usize = 16;

struct Redfish {
    about: About,
    origin: String,
    /// The path of the machine's page; found at the first call if it is not configured.
    system: Option<String>,
    login: Option<(String, Password)>,
    trust: Trust,
    /// As configured, for controllers that do not list theirs.
    reset_type: Option<String>,
    timeout: Duration,
    /// Kept between calls: a handshake costs a slow controller seconds.
    http: Option<Http>,
}

pub(super) fn open(fields: &mut Fields) -> Result<Box<dyn Driver>, SwitchError> {
    let text = fields.needed("url", "https://bmc7")?;
    let url = Url::parse(&text).map_err(|error| fields.wrong(format!("url: {error}")))?;
    let rest = url.path.trim_end_matches('/');
    if !matches!(rest, "" | "/redfish" | "/redfish/v1") || url.query.is_some() || url.user.is_some() {
        return Err(fields
            .wrong("url is the controller's alone, https://HOST; user and system are fields of their own"));
    }
    let system = fields.text("system")?;
    if system.as_ref().is_some_and(|path| !path.starts_with('/')) {
        return Err(
            fields.wrong("system is the path of the machine's page: system = \"/redfish/v1/Systems/1\"")
        );
    }
    let (login, insecure) = (fields.login()?, fields.flag("insecure")?);
    if login.is_some() && url.is_plain() && !insecure {
        return Err(fields.wrong(
            "a password over http:// can be read by everyone on the way: use https://, or insecure = true",
        ));
    }
    let (ca, fingerprint) = (fields.path("ca_file")?, fields.text("fingerprint")?);
    if fingerprint.is_some() && url.is_plain() {
        return Err(fields.wrong("fingerprint is of a certificate, and http:// has none: use https://"));
    }
    let trust = Trust::new(ca, "ca_file", fingerprint.as_deref(), insecure);
    let trust = trust.map_err(|why| fields.wrong(why))?;
    let timeout = fields.duration("timeout")?;
    let host = url.origin.trim_start_matches("https://").trim_start_matches("http://");
    let about = About {
        controller: host.to_owned(),
        settle: Some(Settle::MACHINE),
        meter: Some(meter(&url, system.as_deref(), login.as_ref(), &trust, timeout)),
        ..About::new("redfish", format!("{host}{}", system.as_deref().unwrap_or("")), vec![Depth::Off])
    };
    Ok(Box::new(Redfish {
        about,
        origin: url.origin,
        system,
        login,
        trust,
        reset_type: fields.text("reset_type")?,
        timeout: timeout.unwrap_or(Duration::from_secs(10)),
        http: None,
    }))
}

/// The controller as a meter; with `system` of that machine only.
fn meter(
    url: &Url,
    system: Option<&str>,
    login: Option<&(String, Password)>,
    trust: &Trust,
    timeout: Option<Duration>,
) -> String {
    let (scheme, host) = url.origin.split_once("://").expect("it was parsed");
    let user = login.map_or(String::new(), |(user, _)| format!("{user}@"));
    let trust = match trust {
        Trust::Authorities(path) => path.as_ref().map(|path| format!("ca={}", path.display())),
        Trust::Pinned(pin) => Some(format!("fingerprint={}", pin.digits())),
        Trust::Anyone => Some("insecure".into()),
    };
    let timeout = timeout.map(|time| format!("timeout={}s", time.as_secs_f64()));
    let options = login.map(|(_, password)| password.option()).into_iter().chain(trust).chain(timeout);
    let options: String = options.map(|option| format!(",{option}")).collect();
    format!("redfish{options}:{scheme}://{user}{host}{}", system.unwrap_or_default())
}

impl Redfish {
    fn open(&self) -> Result<Http, SwitchError> {
        let login = self.login.as_ref().map(|(user, from)| Ok((user.clone(), from.read()?)));
        let settings =
            Settings { login: login.transpose()?, trust: self.trust.clone(), timeout: self.timeout };
        Http::open(&settings).map_err(|error| SwitchError::Unavailable {
            what: "ca_file".into(),
            why: format!(
                "{error}; it is the certificate of the controller, or of the authority that signed it, in PEM"
            ),
        })
    }

    /// Sends a request, and forgets the connection and the password if that fails.
    fn send<T>(
        &mut self,
        request: impl FnOnce(&Http, &str) -> Result<T, HttpError>,
    ) -> Result<Result<T, HttpError>, SwitchError> {
        let http = match self.http.take() {
            Some(http) => http,
            None => self.open()?,
        };
        let answer = request(&http, &self.origin);
        if answer.is_ok() {
            self.http = Some(http);
        }
        Ok(answer)
    }

    fn get(&mut self, path: &str) -> Result<Value, SwitchError> {
        let answer = self.send(|http, origin| http.get(&format!("{origin}{path}"), None))?;
        answer.map_err(|error| self.failed(path, error))
    }

    fn refused(&self, why: String) -> SwitchError {
        SwitchError::Refused { what: self.about.machine.clone(), why }
    }

    fn failed(&self, path: &str, error: HttpError) -> SwitchError {
        let machine = self.about.machine.clone();
        match &error {
            HttpError::Denied(_) => self
                .refused(format!("{error}; check user and password, and that the user may switch the power")),
            HttpError::Certificate(untrusted) => {
                let host = self.origin.trim_start_matches("https://");
                let port = if host.contains(':') && !host.ends_with(']') { "" } else { ":443" };
                SwitchError::Refused {
                    what: format!("this side trusts no certificate of {machine}, so it"),
                    why: format!(
                        "{error}; if the controller's own page shows that fingerprint, fingerprint = \"{}\" trusts it; or keep the certificate, \
                         `openssl s_client -connect {host}{port} </dev/null | openssl x509`, or that of the authority which signed it, in a \
                         file: ca_file = FILE; insecure = true trusts any",
                        untrusted.presented
                    ),
                }
            }
            HttpError::NoPage => self.refused(format!(
                "it has no page {path}: check system, or leave it out if the controller has one machine"
            )),
            _ => SwitchError::Unreachable {
                machine,
                why: format!(
                    "{path}: {error}; check its address and that it answers; timeout gives it longer"
                ),
            },
        }
    }

    /// The path and the page of the machine.
    fn page(&mut self) -> Result<(String, Value), SwitchError> {
        if let Some(path) = self.system.clone() {
            let page = self.get(&path)?;
            return Ok((path, page));
        }
        let list = self.get("/redfish/v1/Systems")?;
        let members = list["Members"].as_array().into_iter().flatten();
        let paths: Vec<String> = members
            .filter_map(|member| member["@odata.id"].as_str())
            .filter(|path| path.starts_with('/'))
            .take(MOST_SYSTEMS)
            .map(str::to_owned)
            .collect();
        match &paths[..] {
            [path] => {
                self.system = Some(path.clone());
                let page = self.get(path)?;
                Ok((path.clone(), page))
            }
            _ => Err(self.refused(format!(
                "it has {} machines: name one of them, system = one of {paths:?}",
                paths.len()
            ))),
        }
    }

    /// The types that the controller lists for a reset, wherever it does.
    fn allowed(&mut self, reset: &Value) -> Result<Vec<String>, SwitchError> {
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let listed = texts(&reset["ResetType@Redfish.AllowableValues"]);
        let info = reset["@Redfish.ActionInfo"].as_str().filter(|path| path.starts_with('/'));
        match (listed.is_empty(), info) {
            (true, Some(path)) => {
                let page = self.get(path)?;
                let parameters = page["Parameters"].as_array().into_iter().flatten();
                let mut of_type = parameters.filter(|parameter| parameter["Name"] == "ResetType");
                Ok(of_type.next().map(|parameter| texts(&parameter["AllowableValues"])).unwrap_or_default())
            }
            _ => Ok(listed),
        }
    }

    /// The types to try, in order.
    fn choose(&mut self, reset: &Value, state: PowerState) -> Result<Vec<String>, SwitchError> {
        if let Some(configured) = &self.reset_type {
            return Ok(vec![configured.clone()]);
        }
        let allowed = self.allowed(reset)?;
        let button = (state == PowerState::Off).then_some(BUTTON);
        let able = ON.iter().copied().chain(button).filter(|name| allowed.iter().any(|a| a == name));
        let chosen: Vec<String> = able.map(str::to_owned).collect();
        if chosen.is_empty() {
            return Err(self.refused(format!(
                "of its reset types {allowed:?} none turns a machine on; if you know one that does, reset_type = \"On\""
            )));
        }
        Ok(chosen)
    }
}

fn state(page: &Value) -> PowerState {
    match page["PowerState"].as_str() {
        Some("On") => PowerState::On,
        Some("PoweringOn") => PowerState::PoweringOn,
        Some("PoweringOff") => PowerState::PoweringOff,
        Some("Off") => PowerState::Off,
        _ => PowerState::Unknown,
    }
}

impl Driver for Redfish {
    fn about(&self) -> &About {
        &self.about
    }

    fn available(&self) -> Result<(), SwitchError> {
        self.open().map(|_| ())
    }

    fn wake(&mut self, _: &mut dyn Clock) -> Result<(), SwitchError> {
        let (path, page) = self.page()?;
        let reset = &page["Actions"]["#ComputerSystem.Reset"];
        // A target on another host would send the password there.
        let Some(target) = reset["target"].as_str().filter(|target| target.starts_with('/')) else {
            let why = format!("{path} offers no reset; the user may lack the right to switch the power");
            return Err(self.refused(why));
        };
        let mut why = String::new();
        for name in self.choose(reset, state(&page))? {
            let order = json!({ "ResetType": name });
            match self.send(|http, origin| http.post(&format!("{origin}{target}"), &order))? {
                Ok(()) => return Ok(()),
                Err(HttpError::Status { status: 409, .. }) => {
                    return Err(SwitchError::GoingDown { machine: self.about.machine.clone() });
                }
                // It lists types that it does not take.
                Err(error @ HttpError::Status { status: 400..500, .. }) => {
                    why += &format!("{name}: {error}; ")
                }
                Err(error) => return Err(self.failed(target, error)),
            }
        }
        Err(self.refused(why + "see the controller's own log"))
    }

    fn observe(&mut self, _: &mut dyn Clock) -> Result<PowerState, SwitchError> {
        self.page().map(|(_, page)| state(&page))
    }
}
