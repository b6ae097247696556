"""What keeps each fault of `docs/faults.md` out, as an edit that takes it away.

An edit replaces a text that stands once in a file. With it the row's test must fail: `test_defences_matter.py` tries.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defence:
    """One edit and the test that notices it."""

    row: int
    """Of the table in `docs/faults.md`."""
    test: str
    """Named in that row."""
    file: str
    text: str
    edited: str


RESUME, STUCK, VERSIONS = (f"tests/faults/test_{name}_faults.py::test_" for name in ("resume", "stuck", "version"))
LEARNER = "tests/trainer/test_learner_protocol.py::test_"
ORCHESTRATOR, COLLECT = "tests/rollout/test_orchestrator.py::test_", "tests/rollout/test_collect.py::test_"
NEXT_NUMBER = ("trainer/tail.py", "min(open_shards, default=worker.next_seq)", "worker.next_seq")
"""The cursor runs ahead of rows without a disposition."""

DEFENCES = (
    Defence(1, f"{RESUME}kills_skip_no_prompt_and_favour_none", *NEXT_NUMBER),
    Defence(2, f"{RESUME}what_was_sampled_ahead_survives_a_kill", *NEXT_NUMBER),
    Defence(
        3,
        f"{RESUME}what_was_in_flight_is_played_again_to_the_last_sample",
        "rollout/claims.py",
        "        while self._orphans:\n            claim, gen",
        "        while False:\n            claim, gen",
    ),
    Defence(
        4,
        f"{RESUME}a_slow_group_does_not_hold_back_the_place_to_resume_from",
        "trainer/progress.py",
        "recorded={(w, s, r) for w, s, r in manifest.recorded}",
        "recorded=set()",
    ),
    Defence(
        5,
        f"{RESUME}resuming_plays_nothing_that_was_trained_or_sealed",
        "storage/control.py",
        "store.create(keys.claim(base, group), claim.to_bytes())",
        "store.put(keys.claim(base, group), claim.to_bytes())",
    ),
    Defence(
        6,
        f"{VERSIONS}the_first_rollout_after_a_resume_is_of_the_restored_weights",
        "trainer/learner.py",
        "            self.updater.load(manifest)\n",
        "",
    ),
    Defence(
        7,
        f"{RESUME}steps_are_numbered_without_gap_or_repeat_whenever_one_resumes",
        "trainer/progress.py",
        "        step=manifest.step,",
        "        step=manifest.step + 1,",
    ),
    Defence(
        8,
        f"{RESUME}the_order_of_tasks_is_that_of_a_run_without_a_break",
        "trainer/progress.py",
        "        ended=set(manifest.ended),",
        "        ended={*manifest.ended, manifest.limit - 1},",
    ),
    Defence(
        9,
        f"{VERSIONS}resuming_inflates_no_capacity",
        "trainer/progress.py",
        "ended_count=manifest.low + len(manifest.ended)",
        "ended_count=manifest.low + len(manifest.ended) + manifest.version",
    ),
    Defence(
        10,
        f"{VERSIONS}a_restarted_learner_never_serves_an_older_policy",
        "trainer/learner.py",
        "            self._publish(force=True)\n            self.window",
        "            self.published = self.publisher.read(0)\n            self.window",
    ),
    Defence(
        10,
        "tests/rollout/test_engine_contract.py::test_weights_never_go_back",
        "rollout/scripted.py",
        "        check_version(self.version, version)\n",
        "",
    ),
    Defence(
        11,
        f"{LEARNER}staleness_is_bounded_and_a_stale_group_is_recorded_not_trained",
        "trainer/staleness.py",
        "if lag > self.bounds.max_staleness:",
        "if lag > self.bounds.max_staleness + 1:",
    ),
    Defence(
        11,
        "tests/rollout/test_worker_and_learner.py::test_staleness_is_bounded_and_every_sample_trained_once",
        "rollout/policy.py",
        "return self._engine.version >= version",
        "return self._engine.version >= version - 1",
    ),
    Defence(
        12,
        f"{VERSIONS}rows_of_a_policy_that_the_run_has_not_reached_are_turned_away",
        "trainer/learner.py",
        "if newest > self.progress.version:",
        "if False:",
    ),
    Defence(
        13,
        f"{VERSIONS}without_staleness_nothing_starts_before_the_update_that_it_follows",
        "trainer/progress.py",
        "min(self.max_staleness + 1, self.steps - step)",
        "min(self.max_staleness + 2, self.steps - step)",
    ),
    Defence(
        13,
        f"{VERSIONS}a_worker_waits_for_the_policy_that_the_window_names",
        "rollout/policy.py",
        "return self._engine.version >= version",
        "return True",
    ),
    Defence(
        14,
        f"{RESUME}files_of_a_checkpoint_without_its_manifest_are_no_checkpoint",
        "storage/expired.py",
        'found = [k for k in store.list(f"{keys.checkpoints(base)}/") if k.endswith("/manifest.json")]',
        "found = sorted({'/'.join([*k.split('/')[:5], 'manifest.json']) for k in store.list(keys.checkpoints(base))})",
    ),
    Defence(15, f"{RESUME}the_batch_chosen_at_the_kill_is_the_next_one", *NEXT_NUMBER),
    Defence(
        16,
        f"{STUCK}a_sample_that_never_returns_costs_its_group_a_deadline",
        "trainer/candidates.py",
        "self._wall() - claim.first_claimed > self._config.rl.group_seconds",
        "False",
    ),
    Defence(
        17,
        f"{ORCHESTRATOR}an_exception_that_is_no_episodes_own_surfaces",
        "rollout/orchestrator.py",
        "        if errors:\n            raise errors[0]\n",
        "",
    ),
    Defence(
        17,
        "tests/rollout/test_worker.py::test_a_window_that_names_no_policy_stops_the_worker",
        "rollout/worker.py",
        "                task.result()\n",
        "                pass\n",
    ),
    Defence(
        17,
        "tests/tasks/test_supervise.py::test_the_same_cause_twice_ends_it",
        "tasks/supervise.py",
        "        if outcome.deliberate or repeated or failures > restarts.limit:",
        "        if outcome.deliberate or failures > 9:",
    ),
    Defence(
        18,
        f"{STUCK}a_poisoned_task_ends_once_and_is_not_drawn_again_after_a_resume",
        "trainer/assembler.py",
        "len(self.samples.keys() | dead) >= size",
        "len(self.samples.keys()) >= size",
    ),
    Defence(
        18,
        "tests/rollout/test_quarantine.py::test_a_poisonous_task_is_given_up_by_all_workers_and_after_a_resume",
        "rollout/quarantine.py",
        "        return found.reason(self._after)",
        '        return ""',
    ),
    Defence(
        18,
        "tests/rollout/test_deadly_tasks.py::test_a_task_that_ends_workers_is_quarantined_and_the_run_goes_on",
        "rollout/shift.py",
        "            self._quarantine.condemn(task, assignment.deadly)\n",
        "            pass\n",
    ),
    Defence(
        19,
        f"{STUCK}no_wake_up_is_lost_between_ten_thousand_of_them",
        "rollout/orchestrator.py",
        "        try:\n            await asyncio.wait_for(self._news.wait(), seconds)",
        "        self._news.clear()\n        try:\n            await asyncio.wait_for(self._news.wait(), seconds)",
    ),
    Defence(
        19,
        f"{STUCK}no_wake_up_is_lost_between_ten_thousand_policies",
        "rollout/policy.py",
        "            self._loading.add_done_callback(lambda _: self._news())\n",
        "",
    ),
    Defence(
        20,
        f"{ORCHESTRATOR}one_bad_task_stops_nothing",
        "rollout/orchestrator.py",
        "row.failed and job.attempt % self._attempts < self._attempts - 1",
        "row.failed and job.attempt < 9",
    ),
    Defence(
        20,
        f"{ORCHESTRATOR}when_everything_fails_the_first_cause_is_said_soon",
        "rollout/orchestrator.py",
        "        self._streak.check()\n",
        "",
    ),
    Defence(
        20,
        f"{LEARNER}many_steps_without_anything_to_train_stop_the_run_with_the_cause",
        "trainer/learner.py",
        "if self.progress.empty_steps >= self.config.rl.max_empty_steps:",
        "if False:",
    ),
    Defence(
        21,
        f"{COLLECT}scoring_does_not_run_out_of_the_time_for_acting",
        "rollout/collect.py",
        "        episode.allow(self._limits.reward_seconds + self._limits.step_seconds)",
        "        episode.allow(0.0)",
    ),
    Defence(
        21,
        f"{COLLECT}a_hanging_reward_and_a_whole_episode_have_deadlines",
        "rollout/collect.py",
        "episode.messages, seconds=self._limits.reward_seconds)",
        "episode.messages, seconds=5.0)",
    ),
    Defence(
        22,
        f"{ORCHESTRATOR}a_bug_in_one_episode_loses_no_other",
        "rollout/orchestrator.py",
        "        for job, row in rows:\n",
        "        if errors:\n            raise errors[0]\n        for job, row in rows:\n",
    ),
    Defence(
        22,
        f"{LEARNER}an_episode_in_which_nothing_was_sampled_is_failed_and_harms_nobody",
        "schemas/trajectory.py",
        "return self.status in FAILED or not any(self.mask)",
        "return self.status in FAILED",
    ),
    Defence(
        22,
        "tests/simulation/test_protocol_simulation.py::test_no_seed_breaks_an_invariant",
        "trainer/staleness.py",
        "settle = {g: end for g, end in ends.items() if end is not None}",
        "settle = {}",
    ),
    Defence(
        22,
        f"{STUCK}groups_that_are_given_up_at_any_moment_strand_nothing",
        "rollout/orchestrator.py",
        "        self._take()\n        self._queue = deque",
        "        self._finished.clear()\n        self._queue = deque",
    ),
    Defence(
        23,
        f"{VERSIONS}an_update_during_a_turn_does_not_make_its_tokens_younger",
        "rollout/scripted.py",
        "versions=(version,) * len(tokens)",
        "versions=(self.version,) * len(tokens)",
    ),
    Defence(
        23,
        "tests/rollout/test_jax_engine.py::test_an_update_lands_inside_a_turn",
        "rollout/jax_engine.py",
        "        versions=tuple(job.versions),",
        "        versions=(job.versions[-1],) * len(job.tokens),",
    ),
    Defence(
        24,
        f"{VERSIONS}versions_count_updates_and_not_publications",
        "trainer/learner.py",
        "            self.progress.version,\n            self.config.rl,",
        "            self._published_version(),\n            self.config.rl,",
    ),
    Defence(
        25,
        "tests/rollout/test_jax_engine.py::test_another_session_never_reads_an_older_policy_s_keys",
        "rollout/jax_engine.py",
        "                self._table.new_policy(recompute=self._recompute)",
        "                pass",
    ),
    Defence(
        26,
        "tests/rollout/test_worker.py::test_in_flight_updates_reach_running_episodes_and_drain_waits_for_them",
        "rollout/policy.py",
        "(in_flight == 0 or not self._drain)",
        "True",
    ),
    Defence(
        28,
        "tests/trainer/test_mini_batches.py::test_staleness_counts_the_updates_of_a_step",
        "schemas/rl.py",
        "return steps * self.updates + self.updates - 1",
        "return steps",
    ),
    Defence(
        28,
        "tests/schemas/test_config_text.py::test_what_is_wrong_is_said_in_one_sentence",
        "schemas/rl.py",
        "if self.updates > self.max_staleness + 1:",
        "if False:",
    ),
    Defence(
        29,
        f"{STUCK}slow_tasks_are_trained_as_often_as_they_are_sampled",
        "trainer/staleness.py",
        "return Selection(tuple(train), settle) if self._paced(progress, waiting) else None",
        "return Selection(tuple(train), settle)",
    ),
    Defence(
        30,
        f"{STUCK}groups_of_unequal_size_are_each_measured_by_themselves",
        "trainer/record.py",
        "np.split(rewards, np.cumsum(sizes)[:-1]) if sizes else []",
        "np.array_split(rewards, len(sizes)) if sizes else []",
    ),
    Defence(
        31,
        f"{STUCK}groups_go_by_number_and_not_by_the_prompt",
        "trainer/record.py",
        "np.split(rewards, np.cumsum(sizes)[:-1]) if sizes else []",
        "np.split(rewards, len(rewards))",
    ),
    Defence(
        32,
        "tests/trainer/test_step.py::test_micro_batches_padding_and_packing_change_nothing",
        "trainer/step.py",
        "        advantages = jnp.broadcast_to(by_token, logprobs.shape)",
        "        advantages = jnp.broadcast_to(by_token - jnp.mean(by_token), logprobs.shape)",
    ),
    Defence(
        33,
        "tests/rollout/test_streams.py::test_trained_ids_are_what_was_fed_and_sampled",
        "rollout/stream.py",
        "        self.tokens.extend(ids)\n",
        "        self.tokens.extend(sorted(ids))\n",
    ),
    Defence(
        33,
        f"{COLLECT}the_stream_only_grows_and_sampled_ids_stay_as_they_were",
        "rollout/collect.py",
        "        episode.stream.feed(ids)\n",
        "        told, stream = self._chat._tokenizer, episode.stream\n"
        "        again = ([i] if i > 255 else told.encode(told.decode([i])) for i in stream.tokens)\n"
        "        stream.tokens[:] = [i for ids_ in again for i in ids_]\n"
        "        stream.feed(ids)\n",
    ),
    Defence(
        33,
        "tests/rollout/test_programs.py::test_a_program_s_episode_is_that_of_an_agent_of_ours",
        "rollout/segments.py",
        "found = self._find(chat.digest, asked, keys)",
        "found = self._find('', asked, keys)",
    ),
    Defence(
        33,
        "tests/trainer/test_batch.py::test_segments_of_a_trajectory_stand_behind_each_other_and_apart",
        "trainer/batch.py",
        "np.arange(size) - own[number - 1]",
        "np.arange(size)",
    ),
    Defence(
        34,
        "tests/rollout/test_jax_engine.py::test_truncated_samples_follow_what_is_left_of_the_distribution",
        "rollout/jax_kernels.py",
        "logprobs.at[number].set(of_tokens(logits, token))",
        "logprobs.at[number].set(of_tokens(logits / 1.3, token))",
    ),
    Defence(
        35,
        "tests/rollout/test_jax_engine.py::test_logprobs_of_later_turns_are_the_learner_s",
        "rollout/jax_kernels.py",
        "logprobs.at[number].set(of_tokens(logits, token))",
        "logprobs.at[number].set(of_tokens(logits.astype(jnp.bfloat16).astype(jnp.float32), token))",
    ),
    Defence(
        38,
        "tests/tasks/test_stages.py::test_a_report_of_other_weights_is_refused",
        "tasks/evaluate.py",
        "if report.weights_sha256 != wanted.weights.sha256:",
        "if False:",
    ),
    Defence(
        39,
        "tests/trainer/test_replay.py::test_a_checkpoint_is_replayed_to_the_bit",
        "trainer/record.py",
        "for i, (r, a) in enumerate(zip(batch, advantages, strict=True))]",
        "for i, (r, a) in enumerate(zip(batch, reversed(advantages), strict=True))]",
    ),
    Defence(
        39,
        "tests/trainer/test_replay.py::test_other_parameters_are_a_violation",
        "trainer/replay_process.py",
        "found, name = updater.params_digest(), ",
        "found, name = manifest.params_sha256, ",
    ),
)
