//! Encrypted connections: TLS 1.3, both sides with a certificate of the group's authority.
//!
//! The authority is the group's or the cluster's own. A certificate must be for the name [`NAME`], so other certificates of the
//! authority, for web servers say, are refused. A certificate does not identify a rank or a group; the token does, inside the
//! connection ([`crate::handshake`]).
//!
//! A rank's own certificate is checked when its files are read, as peers will check it, so most mistakes are reported where they were
//! made. Revocation is not checked: use certificates of short validity, or change the authority.

use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName,
    RootCertStore, ServerConfig, ServerConnection, SignatureScheme,
};
use skyphos_types::{Error, Result};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name in a rank's certificate.
pub const NAME: &str = "skyphos";

/// The files for encrypted connections, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificates of the authorities that have signed the ranks' certificates.
    pub authority: PathBuf,
    /// This rank's certificate, with intermediate certificates.
    pub certificate: PathBuf,
    /// The certificate's private key, not encrypted.
    pub key: PathBuf,
}

/// The configuration of encrypted connections.
#[derive(Clone)]
pub(crate) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// Reads and checks a rank's files.
    pub(crate) fn load(files: &TlsFiles, rank: u32) -> Result<Tls> {
        read(files, rustls::crypto::ring::default_provider())
            .map_err(|why| Error::bad_input(format!("TLS of rank {rank}: {why}")))
    }

    /// The state of a connection that this rank accepted (`incoming`) or made.
    pub(crate) fn connection(&self, incoming: bool) -> std::result::Result<Connection, rustls::Error> {
        Ok(match incoming {
            true => ServerConnection::new(self.server.clone())?.into(),
            false => ClientConnection::new(self.client.clone(), name())?.into(),
        })
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("a name")
}

/// Reads a rank's files, checks them, and builds the configurations of both sides of a connection. `Err`: the text of an error.
pub(crate) fn read(files: &TlsFiles, provider: CryptoProvider) -> std::result::Result<Tls, String> {
    let TlsFiles { authority, certificate, key } = files;
    let mut roots = RootCertStore::empty();
    for root in certificates(authority)? {
        roots.add(root).map_err(|e| file_error("the authority", authority, &e))?;
    }
    let (roots, chain) = (Arc::new(roots), certificates(certificate)?);
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| match e {
        pem::Error::NoItemsFound => {
            file_error("the key", key, &"no private key in it, or one that is encrypted")
        }
        e => file_error("the key", key, &pem_message(e)),
    })?;

    let provider = Arc::new(provider);
    let members = Arc::new(
        MemberVerifier::new(roots.clone(), &provider)
            .map_err(|e| file_error("the authority", authority, &e))?,
    );
    members.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).map_err(|error| {
        let why = match error {
            // `BadSignature`: another authority with the same name has signed it.
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => {
                format!("the authority in {} has not signed it", authority.display())
            }
            rustls::Error::InvalidCertificate(cause) => cause.to_string(),
            other => other.to_string(),
        };
        file_error("the certificate", certificate, &why)
    })?;

    let versions = &[&rustls::version::TLS13];
    let mismatch = |e: rustls::Error| {
        file_error(
            "the key",
            key,
            &format!("it does not fit the certificate in {} ({e})", certificate.display()),
        )
    };
    let no_tls13 = |e: rustls::Error| format!("no TLS 1.3: {e}");
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(no_tls13)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain.clone(), secret.clone_key())
        .map_err(mismatch)?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(no_tls13)?
        .with_client_cert_verifier(members)
        .with_single_cert(chain, secret)
        .map_err(mismatch)?;
    // Connections are made once: there is nothing to resume.
    client.resumption = Resumption::disabled();
    server.send_tls13_tickets = 0;
    Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
}

fn certificates(path: &Path) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    let all =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => Err(file_error("the file", path, &"no certificate in it")),
        Ok(all) => Ok(all),
        Err(error) => Err(file_error("the file", path, &pem_message(error))),
    }
}

fn file_error(what: &str, path: &Path, cause: &dyn Display) -> String {
    format!("{what} {}: {cause}", path.display())
}

fn pem_message(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        // The library's texts for these errors quote the file, which may be long, and may be a private key.
        pem::Error::MissingSectionEnd { .. } => "not PEM: a section without its end".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "not PEM: a section without its name".to_owned(),
        other => format!("not PEM: {other}"),
    }
}

/// Accepts peers with a certificate of the authority for [`NAME`].
#[derive(Debug)]
struct MemberVerifier(Arc<dyn ClientCertVerifier>);

impl MemberVerifier {
    fn new(
        authority: Arc<RootCertStore>,
        provider: &Arc<CryptoProvider>,
    ) -> std::result::Result<MemberVerifier, rustls::server::VerifierBuilderError> {
        WebPkiClientVerifier::builder_with_provider(authority, provider.clone()).build().map(MemberVerifier)
    }
}

impl ClientCertVerifier for MemberVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        let verified = self.0.verify_client_cert(certificate, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, &name())?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
