//! Names of the rounds of collectives, for reports. The numbers are those of the [`Round`]s of `skyphos_core::collectives`.

use skyphos_core::frame::ARRAYS;
use skyphos_tune::Algorithm;
use skyphos_types::Round;

/// The round of announcements, which no rank waits for, without the bit [`ARRAYS`].
const ANNOUNCE: u32 = !ARRAYS;

/// The name of a round. Rounds of one layer or step have the same name.
pub fn name_of(phase: &str, algorithm: Algorithm, round: Round) -> String {
    let (arrays, round) = (round.0 & ARRAYS != 0, round.0 & !ARRAYS);
    let step = |name: &str, k: u32| format!("{name} {k}");
    let doubling = phase == "allreduce" && algorithm == Algorithm::RecursiveDoubling;
    match (phase, round) {
        ("broadcast", 0x100 | 0x101) => "table".to_owned(),
        ("broadcast", _) if !arrays => "control".to_owned(),
        ("broadcast", 0x200) => "bytes".to_owned(),
        ("broadcast", 0x201..0x0100_0000) => "around".to_owned(),
        ("broadcast", _) => "requested".to_owned(),
        ("shuffle", 0x600) => "pushed".to_owned(),
        ("shuffle", 0x601) => "announced".to_owned(),
        ("shuffle", 0x602) => "requested".to_owned(),
        ("shuffle", _) => "fetched".to_owned(),
        ("outer_product_sum", 0x2000..0x3000) => "agree".to_owned(),
        ("outer_product_sum", 0x3000..0x100_0000) => "factors".to_owned(),
        ("outer_product_sum", 0x300_0000..) => "blocks".to_owned(),
        (_, ANNOUNCE) => "announce".to_owned(),
        ("topk_allreduce", 0x600..) => "select".to_owned(),
        (_, 0x400..0x500) if arrays => "move".to_owned(),
        (_, 0x400..0x500) => "sample".to_owned(),
        (_, 0x500..0x600) => "end".to_owned(),
        ("configure" | "reduce" | "configure_reduce", 0x40..0x80) => "degrees".to_owned(),
        _ if doubling && round == 0x100 => "in".to_owned(),
        _ if doubling && round == 0x101 => "out".to_owned(),
        (_, 0x100..0x140) => step("down", round - 0xff),
        (_, 0x140..0x200) => step("count", round - 0x13f),
        (_, 0x200..0x300) => step("up", round - 0x1ff),
        ("reduce_scatter", 0x300..0x400) => "hand over".to_owned(),
        (_, 0x300..0x400) => "examples".to_owned(),
        (_, 0x1000..0x100_0000) => "reduce".to_owned(),
        (_, 0x100_0000..) => "gather".to_owned(),
        _ => step("round", round + 1),
    }
}
