// An event hub, an Azure SQL database, and Tidemark's consumer in slices between them; ../README.md says how.
targetScope = 'subscription'

@description('Name of the azd environment; part of the names of the resource groups.')
param environmentName string

@description('Region.')
param location string

@description('Object id of whoever deploys, who may then read the log.')
param operatorPrincipalId string = ''

@description('The database, once the identity is known: ../README.md has the command. Empty: nothing is consumed.')
param sqlUrl string = ''

var tags = {
  'azd-env-name': environmentName
}

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: 'rg-${environmentName}-example'
  location: location
  tags: tags
}

module world '../../infra/world.bicep' = {
  name: 'world'
  scope: group
  params: {
    location: location
    tags: tags
    token: uniqueString(group.id)
    hubName: 'payments'
  }
}

module tidemark '../../../infra/main.bicep' = {
  name: 'tidemark-${environmentName}'
  params: {
    environmentName: environmentName
    location: location
    operatorPrincipalId: operatorPrincipalId
    eventHubId: world.outputs.hubId
    consumerHosting: empty(sqlUrl) ? 'off' : 'slices'
    additionalAppSettings: {
      TIDEMARK_CONFIG: 'examples/hub_into_sql/tidemark.toml'
      CONSUMER_SINK: 'sql'
      CONSUMER_SQL_URL: sqlUrl
      CONSUMER_SQL_CREATE_TABLES: 'true' // those of the consumer itself
      CONSUMER_SQL_TABLE: 'Payments'
      CONSUMER_SQL_COLUMNS: 'Id=$.id, Cents=$.cents'
    }
  }
}

module sql '../../infra/sql.bicep' = {
  name: 'sql'
  scope: group
  params: {
    serverName: 'sql-${uniqueString(group.id)}'
    databaseName: 'payments'
    location: location
    tags: tags
    principalId: tidemark.outputs.TIDEMARK_PRINCIPAL_ID
    principalName: 'tidemark'
  }
}

@description('Resource group of the app.')
output AZURE_RESOURCE_GROUP string = tidemark.outputs.AZURE_RESOURCE_GROUP

@description('Name of the function app.')
output AZURE_FUNCTION_NAME string = tidemark.outputs.AZURE_FUNCTION_NAME

@description('Client id of the identity, for the URL of the database.')
output TIDEMARK_CLIENT_ID string = tidemark.outputs.TIDEMARK_CLIENT_ID

@description('Address of the database server.')
output SQL_SERVER string = 'sql-${uniqueString(group.id)}${environment().suffixes.sqlServerHostname}'
