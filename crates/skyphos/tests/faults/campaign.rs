//! Campaigns of hundreds of thousands of seeds. Results are saved after each batch, and the same program does not repeat saved seeds.

use crate::on_all_cores;
use crate::scenario::Scenario;
use crate::tally::Tally;
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// Seeds between two progress messages.
const BATCH: u64 = 2000;

/// The saved state.
#[derive(Default, Serialize, Deserialize)]
struct Campaign {
    /// Identifies the program that ran the seeds.
    program: u64,
    /// Seeds below this one have been run.
    tried: u64,
    tally: Tally,
}

impl Campaign {
    /// Loads the state of this program, if there is one.
    fn resume(file: &Path) -> Campaign {
        let mut hasher = DefaultHasher::new();
        hasher.write(&std::fs::read(std::env::current_exe().unwrap()).unwrap());
        let program = hasher.finish();
        let found =
            std::fs::read(file).ok().and_then(|bytes| serde_json::from_slice::<Campaign>(&bytes).ok());
        let fresh = Campaign { program, ..Campaign::default() };
        found.filter(|campaign| campaign.program == program).unwrap_or(fresh)
    }

    fn save(&self, file: &Path) {
        let next = file.with_extension("next");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&next, serde_json::to_vec_pretty(self).unwrap()).unwrap();
        std::fs::rename(&next, file).unwrap();
    }
}

/// Runs all seeds below `seeds` that have not been run. With `until_wrong`, stops after the first batch with an error.
pub fn run(seeds: u64, file: PathBuf, until_wrong: bool) -> Tally {
    let mut campaign = Campaign::resume(&file);
    if campaign.tried > 0 {
        println!("{} goes on after {} seeds", file.display(), campaign.tried);
    }
    while campaign.tried < seeds && (campaign.tally.wrong.is_empty() || !until_wrong) {
        let first = campaign.tried;
        let count = BATCH.min(seeds - first);
        campaign
            .tally
            .add(on_all_cores(count as usize, |k| Tally::play(&Scenario::from_seed(first + k as u64))));
        campaign.tried += count;
        campaign.save(&file);
        println!("{} of {seeds} seeds, {} of them wrong", campaign.tried, campaign.tally.wrong.len());
    }
    campaign.tally
}
