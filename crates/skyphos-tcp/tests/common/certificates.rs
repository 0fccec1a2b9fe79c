//! Certificates for tests, in files of their own.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use skyphos_tcp::{NAME, TlsFiles};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An authority that signs certificates. All its files are in one folder, which is deleted with it.
pub struct Authority {
    pub folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    made: AtomicUsize,
}

impl Authority {
    pub fn new() -> Authority {
        Authority::named("an authority")
    }

    /// An authority with this name. Several may have the same one.
    pub fn named(name: &str) -> Authority {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        // Beside the test's program, so that files of a killed test are removed with the build.
        let program = std::env::current_exe().unwrap();
        let folder = program.with_extension(format!("certificates-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(folder.join("authority.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { folder, issuer: Issuer::new(params, key), made: AtomicUsize::new(0) }
    }

    /// The files of a valid rank.
    pub fn files(&self) -> TlsFiles {
        self.files_for(NAME, 4000)
    }

    /// The files of a rank whose certificate is for `name` and expires in the year `until`.
    pub fn files_for(&self, name: &str, until: i32) -> TlsFiles {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let at = |what: &str| self.folder.join(format!("{number}.{what}"));
        std::fs::write(at("pem"), certificate.pem()).unwrap();
        std::fs::write(at("key"), key.serialize_pem()).unwrap();
        TlsFiles { authority: self.folder.join("authority.pem"), certificate: at("pem"), key: at("key") }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One authority for all of a test program.
pub fn authority() -> &'static Authority {
    static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);
    &AUTHORITY
}

/// The files of one rank, signed by [`authority`].
pub fn shared() -> TlsFiles {
    static FILES: LazyLock<TlsFiles> = LazyLock::new(|| authority().files());
    FILES.clone()
}
