//! What a collective will move, and which degrees suit it.
//!
//! [`density`]: how many indices a union of power-law sets holds (Kylix, Proposition 4.1).
//! [`degrees`]: the papers' rule for layer degrees (Kylix §III-D, §IV). Nothing here communicates;
//! whoever calls it on several ranks must give all the same numbers.

pub mod degrees;
pub mod density;

pub use degrees::{Sizes, choose_degrees, predict_rows};
pub use density::PowerLaw;
