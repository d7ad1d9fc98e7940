"""Thousands of real documents: each is published or refused, and its schemas compile.

`CI_DOCUMENTS=all` takes all of them, and every operation of the largest.
"""

import gzip
import os
from pathlib import Path

from documents import GITHUB, all_documents, chosen, folder_of_packages, yard_with

from callyard.model.schema import SchemaValidator
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.published import publish_operations
from callyard.providers.openapi.reading import DocumentError, parse
from callyard.providers.openapi.settings import ApiSettings

ALL = os.environ.get("CI_DOCUMENTS") == "all"
MANY = 3000
"""Operations from which only some schemas are made, unless all are asked for."""


def publish(path: Path, faults: list[str]) -> int:
    """Publish a document, make and compile schemas, note what fails, and return the number of operations."""
    parsed, _ = parse(path.read_bytes(), path.name)
    document = Document(str(path), {str(path): parsed})
    settings = ApiSettings(document=str(path), base_url="https://api.example.com")
    published = publish_operations(
        "api", settings, document, longest=48, fault=lambda name, why: faults.append(f"{path.name} {name} {why}")
    )
    assert len({tool.spec.name for tool in published.tools}) == len(published.tools)
    step = 1 if ALL or len(published.tools) < MANY else 20
    for number, tool in enumerate(published.tools):
        assert len(tool.spec.name) <= 48
        if tool.spec.lazy.fault:
            faults.append(f"{path.name} {tool.spec.name} {tool.spec.lazy.fault}")
        elif number % step == 0:
            SchemaValidator(tool.spec.input_schema).fits({})
    return len(published.tools)


def test_real_documents_are_published_and_their_schemas_compile() -> None:
    documents = all_documents()
    taken = documents if ALL else chosen(documents)
    faults: list[str] = []
    refused: list[str] = []
    operations = 0
    for path in taken:
        try:
            operations += publish(path, faults)
        except DocumentError as error:
            refused.append(f"{path.name}: {error}")

    assert len(documents) == 2639
    assert len(taken) == (2639 if ALL else 260)
    assert len(refused) <= len(taken) // 100, refused
    assert len(faults) <= operations // 1000, faults[:20]


def test_swagger_of_kubernetes_is_published() -> None:
    specs = folder_of_packages() / "node_modules" / "kubernetes-client" / "lib" / "specs"
    for path in sorted(specs.glob("*.json.gz")):
        parsed, _ = parse(gzip.decompress(path.read_bytes()), path.name)
        document = Document(str(path), {str(path): parsed})
        settings = ApiSettings(document=str(path), base_url="https://api.example.com")
        faults: list[str] = []
        published = publish_operations(
            "api", settings, document, longest=48, fault=lambda name, _, faults=faults: faults.append(name)
        )

        assert document.is_swagger
        assert len(published.tools) > 500
        assert [
            tool.spec.name
            for tool in published.tools
            if not tool.spec.input_schema["properties"] and "{" in tool.operation.path
        ] == []
        assert faults == []


QUESTIONS = [
    ("create a new issue in a repository", "issues_create"),
    ("list the open pull requests of a repo", "pulls_list"),
    ("merge a pull request", "pulls_merge"),
    ("add a comment to an issue", "issues_create_comment"),
    ("star a repository", "activity_star_repo_for_authenticated_user"),
    ("get the contents of a file in a repository", "repos_get_content"),
    ("delete a repository", "repos_delete"),
    ("create a release", "repos_create_release"),
    ("list the branches of a repository", "repos_list_branches"),
    ("protect a branch", "repos_update_branch_protection"),
    ("fork a repository", "repos_create_fork"),
    ("search for code", "search_code"),
    ("search issues and pull requests", "search_issues_and_pull_requests"),
    ("who am I: the logged in user", "users_get_authenticated"),
    ("list members of an organization", "orgs_list_members"),
    ("add a label to an issue", "issues_add_labels"),
    ("request a review of a pull request", "pulls_request_reviewers"),
    ("approve a pull request with a review", "pulls_create_review"),
    ("list the commits of a repository", "repos_list_commits"),
    ("compare two commits", "repos_compare_commits"),
    ("run a workflow by hand", "actions_create_workflow_dispatch"),
    ("rerun a failed workflow run", "actions_re_run_workflow_failed_jobs"),
    ("download the logs of a job", "actions_download_job_logs_for_workflow_run"),
    ("list artifacts of a workflow run", "actions_list_workflow_run_artifacts"),
    ("set a secret of a repository for actions", "actions_create_or_update_repo_secret"),
    ("create a gist", "gists_create"),
    ("list my notifications", "activity_list_notifications_for_authenticated_user"),
    ("mark all notifications as read", "activity_mark_notifications_as_read"),
    ("add a collaborator to a repository", "repos_add_collaborator"),
    ("create a webhook for a repository", "repos_create_webhook"),
    ("list languages of a repository", "repos_list_languages"),
    ("lock an issue", "issues_lock"),
    ("close a milestone", "issues_update_milestone"),
    ("create a team in an organization", "teams_create"),
    ("list dependabot alerts of a repository", "dependabot_list_alerts_for_repo"),
    ("list code scanning alerts", "code_scanning_list_alerts_for_repo"),
    ("create a deploy key", "repos_create_deploy_key"),
    ("get the rate limit", "rate_limit_get"),
    ("block a user", "users_block"),
    ("render markdown", "markdown_render"),
]


async def test_plain_questions_find_the_operation_among_the_first_five(tmp_path: Path) -> None:
    missed: list[tuple[str, object]] = []
    async with yard_with(folder_of_packages() / GITHUB, tmp_path) as yard:
        names = {spec.name for spec in yard.registry.visible(yard.profile_of(None))}
        listed = len(yard.registry.list(yard.profile_of(None)))
        for question, wanted in QUESTIONS:
            matching = [name for name in names if name == f"api__{wanted}" or name.startswith(f"api__{wanted[:30]}")]
            answer = await yard.call("search_tools", {"query": question, "limit": 5})
            found = [hit["signature"].partition("(")[0] for hit in answer.data["hits"]]
            if not set(matching) & set(found):
                missed.append((question, found))
            assert matching, wanted

    assert listed == 5
    assert len(QUESTIONS) == 40
    assert len(missed) <= 6, missed
