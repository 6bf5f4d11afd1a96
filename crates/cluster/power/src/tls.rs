//! Whose certificate is trusted, and TLS that asks it.
//!
//! Management controllers sign their own certificates. One is trusted because an authority is (or it is itself that
//! authority), because its *fingerprint* is known, or because every one is (`insecure`). A fingerprint trusts exactly
//! one certificate, as SSH trusts the key of a host: whose name it has, until when and by whom it is signed does not
//! matter. It is compared during the handshake, before anything of a request is sent, so a stranger never sees a
//! password; and the handshake has to be signed with the certificate's key, because the certificate itself is public.
//!
//! The HTTP library has no place for such a check, so the handshake is done here, as its own connector does it.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme, StreamOwned,
};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// Debian and Alpine; Fedora and its derivatives; SUSE. Administrators also put their company's authorities there.
const SYSTEM_AUTHORITIES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// SHA-256 of a certificate in DER, as `openssl x509 -fingerprint -sha256` and controllers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate.as_ref()).into())
    }

    /// The 64 digits alone: in a meter's options a colon would begin the address.
    pub fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.digits())
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    /// `sha256:` may be left out; colons between the digits are passed over.
    fn from_str(text: &str) -> Result<Fingerprint, String> {
        let wrong = || {
            format!(
                "{text:?} is not the SHA-256 of a certificate: that has 64 hexadecimal digits, sha256:1f0c..."
            )
        };
        let digits = text.strip_prefix("sha256:").unwrap_or(text).replace(':', "");
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().as_chunks::<2>().0) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Fingerprint(bytes))
    }
}

/// Whose certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those of the authorities in a file, PEM; `None`: of the system's.
    Authorities(Option<PathBuf>),
    /// One.
    Pinned(Fingerprint),
    /// Every one.
    Anyone,
}

impl Trust {
    /// By a caller's settings; it calls that of `ca` so.
    pub fn new(
        ca: Option<PathBuf>,
        ca_name: &str,
        fingerprint: Option<&str>,
        insecure: bool,
    ) -> Result<Trust, String> {
        let pin = fingerprint.map(|text| text.parse::<Fingerprint>());
        match (pin.transpose().map_err(|why| format!("fingerprint: {why}"))?, ca, insecure) {
            (Some(_), Some(_), _) => Err(format!(
                "{ca_name} and fingerprint: give one of them; a fingerprint trusts one certificate regardless of who signed it"
            )),
            (Some(_), None, true) => {
                Err("fingerprint and insecure: give one of them; insecure trusts every certificate".into())
            }
            (Some(pin), None, false) => Ok(Trust::Pinned(pin)),
            (None, _, true) => Ok(Trust::Anyone),
            (None, ca, false) => Ok(Trust::Authorities(ca)),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot read {path}: {source}")]
    Authorities { path: PathBuf, source: io::Error },
    #[error("{0} holds no certificate in PEM")]
    NoCertificate(PathBuf),
}

/// A certificate that is not trusted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the certificate {presented} is not trusted: {why}")]
pub struct Untrusted {
    /// Of the certificate that the other side showed.
    pub presented: Fingerprint,
    why: String,
}

impl Untrusted {
    /// If that is why a connection failed.
    pub fn of(error: &io::Error) -> Option<Untrusted> {
        match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
                why.downcast_ref::<Untrusted>().cloned()
            }
            _ => None,
        }
    }
}

/// Decides, and keeps for the error what was shown.
#[derive(Debug)]
struct Verifier {
    by: By,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum By {
    /// `None`: this system has none.
    Authorities(Option<Arc<WebPkiServerVerifier>>),
    Pin(Fingerprint),
    Nothing,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let presented = Fingerprint::of(end_entity);
        let why = match &self.by {
            By::Nothing => return Ok(ServerCertVerified::assertion()),
            By::Pin(pin) if *pin == presented => return Ok(ServerCertVerified::assertion()),
            By::Pin(pin) => format!("the fingerprint in the settings is {pin}"),
            By::Authorities(None) => format!("there are no authorities in {}", SYSTEM_AUTHORITIES.join(", ")),
            By::Authorities(Some(of)) => {
                match of.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
                    Ok(trusted) => return Ok(trusted),
                    Err(error) => error.to_string(),
                }
            }
        };
        let untrusted = Untrusted { presented, why };
        Err(CertificateError::Other(OtherError(Arc::new(untrusted))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match self.by {
            // A server that is trusted unconditionally need not prove anything.
            By::Nothing => Ok(HandshakeSignatureValid::assertion()),
            _ => crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match self.by {
            By::Nothing => Ok(HandshakeSignatureValid::assertion()),
            _ => crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>, TrustError> {
    let pem =
        std::fs::read(path).map_err(|source| TrustError::Authorities { path: path.to_owned(), source })?;
    let mut roots = RootCertStore::empty();
    // A system's file has some that this library does not know.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    if roots.is_empty() { Err(TrustError::NoCertificate(path.to_owned())) } else { Ok(Arc::new(roots)) }
}

fn by(trust: &Trust, provider: &Arc<CryptoProvider>) -> Result<By, TrustError> {
    let system = || SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    Ok(match trust {
        Trust::Anyone => By::Nothing,
        Trust::Pinned(pin) => By::Pin(*pin),
        Trust::Authorities(path) => match path.clone().or_else(system) {
            None => By::Authorities(None),
            Some(path) => {
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots(&path)?, provider.clone()).build();
                By::Authorities(Some(verifier.map_err(|_| TrustError::NoCertificate(path))?))
            }
        },
    })
}

/// Wraps connections to `https://` in TLS.
#[derive(Debug)]
pub struct TlsConnector(Arc<ClientConfig>);

impl TlsConnector {
    pub fn new(trust: &Trust) -> Result<TlsConnector, TrustError> {
        let provider = Arc::new(crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let verifier = Verifier { by: by(trust, &provider)?, algorithms };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has what these versions need")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(TlsConnector(Arc::new(config)))
    }
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, Tls>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host).map_err(|_| ureq::Error::Tls("the host's name is none"))?;
        let mut connection =
            ClientConnection::new(self.0.clone(), name.to_owned()).map_err(io::Error::other)?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        connection.complete_io(&mut socket)?;
        let buffers =
            LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(Tls { buffers, stream: StreamOwned::new(connection, socket) })))
    }
}

pub struct Tls {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Transport for Tls {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        Ok(self.stream.write_all(&self.buffers.output()[..amount])?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Http, HttpError, Settings};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::server::ResolvesServerCert;
    use rustls::sign::{CertifiedKey, SingleCertAndKey};
    use rustls::{ServerConfig, ServerConnection, Stream};
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;
    use tempfile::TempDir;

    /// A new certificate and its key.
    fn made() -> Option<(TempDir, CertificateDer<'static>, PrivateKeyDer<'static>)> {
        let dir = TempDir::new().unwrap();
        if !ebb_testing::certificate(dir.path()) {
            return None;
        }
        let certificate = CertificateDer::from_pem_file(dir.path().join("cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(dir.path().join("key.pem")).unwrap();
        Some((dir, certificate, key))
    }

    /// Answers `{}` to every request, and reports the request's lines; none of a client that left during the handshake.
    fn serve(
        certificate: &CertificateDer<'static>,
        key: &PrivateKeyDer<'static>,
    ) -> (String, Receiver<Vec<String>>) {
        let provider = Arc::new(crypto::ring::default_provider());
        let key = provider.key_provider.load_private_key(key.clone_key()).unwrap();
        // Whether they belong together is not looked at.
        let pair: Arc<dyn ResolvesServerCert> =
            Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![certificate.clone()], key)));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(pair);
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let (heard, receiver) = channel();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let mut connection = ServerConnection::new(config.clone()).unwrap();
                let mut stream = Stream::new(&mut connection, &mut socket);
                let lines = BufReader::new(&mut stream).lines();
                let lines: Vec<String> =
                    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let _ = heard.send(lines);
                let _ =
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
                connection.send_close_notify();
                let _ = connection.complete_io(&mut socket);
            }
        });
        (url, receiver)
    }

    fn ask(url: &str, trust: Trust) -> Result<(), HttpError> {
        let login = Some(("ebb".to_string(), "secret".to_string()));
        let settings = Settings { login, trust, timeout: Duration::from_secs(60) };
        Http::open(&settings)?.get(url, None).map(|_| ())
    }

    fn has_password(lines: &[String]) -> bool {
        lines.iter().any(|line| line.to_ascii_lowercase().starts_with("authorization:"))
    }

    #[test]
    fn one_certificate_is_trusted_by_its_fingerprint_and_no_other_ever_sees_the_password() {
        let (Some((_dir, certificate, key)), Some((_other_dir, other, _))) = (made(), made()) else { return };
        let (url, heard) = serve(&certificate, &key);
        let pin = Fingerprint::of(&certificate);
        ask(&url, Trust::Pinned(pin)).unwrap();
        assert!(has_password(&heard.recv().unwrap()));
        let wrong = Fingerprint::of(&other);
        let error = ask(&url, Trust::Pinned(wrong)).unwrap_err();
        assert!(matches!(&error, HttpError::Certificate(untrusted) if untrusted.presented == pin), "{error}");
        let text = error.to_string();
        assert!(text.contains(&pin.to_string()) && text.contains(&wrong.to_string()), "{text}");
        assert_eq!(heard.recv().unwrap(), Vec::<String>::new(), "nothing was sent to a stranger");
        let error = ask(&url, Trust::Authorities(None)).unwrap_err();
        assert!(matches!(&error, HttpError::Certificate(untrusted) if untrusted.presented == pin), "{error}");
        assert_eq!(heard.recv().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_certificate_is_worth_nothing_without_its_key() {
        let (Some((_dir, certificate, _)), Some((_other_dir, _, other))) = (made(), made()) else { return };
        let (url, heard) = serve(&certificate, &other);
        let error = ask(&url, Trust::Pinned(Fingerprint::of(&certificate))).unwrap_err();
        assert!(error.to_string().contains("BadSignature"), "{error}");
        assert_eq!(heard.recv().unwrap(), Vec::<String>::new());
        // The server is sound: who trusts everyone talks to it.
        ask(&url, Trust::Anyone).unwrap();
        assert!(has_password(&heard.recv().unwrap()));
    }

    #[test]
    fn an_authority_is_read_from_a_file() {
        let (Some((dir, certificate, key)), Some((other_dir, ..))) = (made(), made()) else { return };
        let (url, _heard) = serve(&certificate, &key);
        ask(&url, Trust::Authorities(Some(dir.path().join("cert.pem")))).unwrap();
        let other = Trust::Authorities(Some(other_dir.path().join("cert.pem")));
        assert!(matches!(ask(&url, other), Err(HttpError::Certificate(_))));
        let error = ask(&url, Trust::Authorities(Some(dir.path().join("key.pem")))).unwrap_err().to_string();
        assert!(error.contains("holds no certificate in PEM"), "{error}");
        let error = ask(&url, Trust::Authorities(Some(dir.path().join("none")))).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }

    #[test]
    fn fingerprints_are_read_as_others_write_them() {
        let digits = "0123456789abcdef".repeat(4);
        let pin: Fingerprint = digits.parse().unwrap();
        assert_eq!((pin.digits(), pin.to_string()), (digits.clone(), format!("sha256:{digits}")));
        let pairs: Vec<&str> =
            digits.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap()).collect();
        let openssl = pairs.join(":").to_uppercase();
        assert_eq!(openssl.parse(), Ok(pin));
        assert_eq!(format!("sha256:{openssl}").parse(), Ok(pin));
        let long = format!("{digits}0");
        for wrong in ["", "sha256:", "sha256", &digits[1..], &long, &digits.replace('0', "g"), "sha1:00"] {
            let error = wrong.parse::<Fingerprint>().unwrap_err();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
        let trust =
            |ca: Option<&str>, pin, insecure| Trust::new(ca.map(PathBuf::from), "ca_file", pin, insecure);
        assert_eq!(trust(None, Some(digits.as_str()), false), Ok(Trust::Pinned(pin)));
        assert_eq!(trust(Some("x"), None, false), Ok(Trust::Authorities(Some("x".into()))));
        assert_eq!(trust(Some("x"), None, true), Ok(Trust::Anyone));
        assert!(trust(Some("x"), Some(&digits), false).unwrap_err().contains("ca_file and fingerprint"));
        assert!(trust(None, Some(&digits), true).unwrap_err().contains("fingerprint and insecure"));
        assert!(trust(None, Some("12"), false).unwrap_err().contains("fingerprint: \"12\""));
    }
}
