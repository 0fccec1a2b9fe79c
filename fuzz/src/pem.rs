//! The three files of TLS (`skyphos-tcp`, `tls.rs`), damaged.

use crate::allocation::{Limits, within};
use arbitrary::{Result, Unstructured};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use skyphos_tcp::fuzzing::Files;
use skyphos_tcp::{NAME, TlsFiles};
use std::path::PathBuf;
use std::sync::LazyLock;

/// Files of some KB, which are read line by line, decoded and copied several times.
const LIMITS: Limits = Limits { one: 256 << 10, all: 2 << 20 };

/// Largest file, in bytes.
const MAX_BYTES: usize = 16 << 10;

/// The three valid files of a rank, and the paths of damaged copies. The name of their folder contains the process's id.
struct PemFiles {
    texts: [Vec<u8>; 3],
    whole: TlsFiles,
    damaged: [PathBuf; 3],
}

static PEM_FILES: LazyLock<PemFiles> = LazyLock::new(|| {
    // In memory, if the system has such a place: files are written for each input.
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = parent.join(format!("skyphos-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for files");
    let mut authority_params = CertificateParams::new(Vec::new()).expect("no names");
    authority_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = authority_params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(authority_params, key);
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).expect("a name");
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
    let texts = [authority, certificate, key.serialize_pem()].map(String::into_bytes);
    let at = |name: &str, text: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let whole = TlsFiles {
        authority: at("authority", &texts[0]),
        certificate: at("certificate", &texts[1]),
        key: at("key", &texts[2]),
    };
    let damaged = ["a", "c", "k"].map(|name| at(name, b""));
    PemFiles { texts, whole, damaged }
});

/// The valid files of a rank.
pub(crate) fn files() -> &'static TlsFiles {
    &PEM_FILES.whole
}

/// The input selects a file and its damage: bytes are changed, a part is removed or inserted, or all of it is replaced.
pub fn run(data: &[u8]) {
    LazyLock::force(&PEM_FILES);
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    let which = u.int_in_range(0..=2)?;
    let mut text = PEM_FILES.texts[which].clone();
    match u.int_in_range(0..=3)? {
        0 => text = u.bytes(u.len())?.to_vec(),
        1 => {
            // Changes to letters of base 64, so that most files still decode.
            for _ in 0..u.int_in_range(1..=6)? {
                let (at, letter) = (usize::from(u.arbitrary::<u16>()?) % text.len(), u.arbitrary::<u8>()?);
                text[at] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\n-"
                    [usize::from(letter) % 67];
            }
        }
        2 => {
            let (from, to) = (usize::from(u.arbitrary::<u16>()?), usize::from(u.arbitrary::<u16>()?));
            let (from, to) = (from % text.len(), to % text.len());
            text.drain(from.min(to)..from.max(to));
        }
        _ => {
            let at = usize::from(u.arbitrary::<u16>()?) % text.len();
            let more = match u.arbitrary::<u8>()? % 4 {
                0 => PEM_FILES.texts[usize::from(u.arbitrary::<u8>()?) % 3].clone(),
                _ => u.bytes(u.len())?.to_vec(),
            };
            text.splice(at..at, more);
        }
    }
    text.truncate(MAX_BYTES);
    std::fs::write(&PEM_FILES.damaged[which], &text).expect("a file");
    let mut files = files().clone();
    *[&mut files.authority, &mut files.certificate, &mut files.key][which] = PEM_FILES.damaged[which].clone();
    match within(LIMITS, || Files::read(&files)) {
        Ok(_) => {}
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("TLS of rank 3: ") && text.len() < 4096, "{text}");
        }
    }
    Ok(())
}
